"""Finetune: which parameters of a model are trained, and how the others are stored: full, lora, dora, qlora, freeze."""

import re
from dataclasses import dataclass, replace
from typing import Literal, cast, get_args

from meshwise.errors import UserError, nearest, quoted
from meshwise.models.op import ALL_LINEAR

Method = Literal["full", "lora", "dora", "qlora", "freeze"]
METHODS: tuple[Method, ...] = get_args(Method)
MAX_RANK = 65536
DEFAULT_RANK = 16
"""Rank of adapters where none is given, the usual one of published recipes (Axolotl and Unsloth examples). A choice."""
Base = Literal["", "nf4", "nf4-single", "int8", "gptq", "awq"]
BASES: tuple[Base, ...] = get_args(Base)
"""Formats of a frozen base: 16 bits; bitsandbytes' nf4 with and without double quantization, and its int8; 4 bits in groups of 128."""
KBIT_BASES: tuple[Base, ...] = ("nf4", "nf4-single", "int8")
"""Formats of bitsandbytes, whose models PEFT prepares by casting the rest to float32; those of GPTQ and AWQ it leaves as they are."""
EXPECTED = "expected full, lora, dora or qlora with [:RANK[:TARGETS]], or freeze:LAYERS, such as lora:16:q_proj,v_proj"


@dataclass(frozen=True)
class Finetune:
    """A way to fine-tune a model. full every parameter is trained lora pairs of matrices of rank `rank` beside the `targets`; everything
    else is frozen in 16 bits (arXiv:2106.09685) dora lora, and a trained magnitude per output of each target (arXiv:2402.09353) qlora lora
    over a base stored in nf4 with double quantization (arXiv:2305.14314), or in another `base` freeze the embedding and the first
    `frozen_layers` layers are frozen, everything above is trained"""

    method: Method = "full"
    rank: int = 0
    targets: tuple[str, ...] = ()
    """Names of modules as PEFT has them (q_proj, down_proj), or 'attention', 'mlp', 'all-linear'; () for methods without adapters."""
    frozen_layers: int = 0
    base: Base = ""  # format of the frozen products; '': nf4 for qlora, 16 bits for the others
    narrow: bool = False  # the frozen weights of products have 8 bits, as narrow products read them
    wide_rest: bool = False
    """What is not quantized of a quantized base is float32, and so is the residual stream (PEFT's prepare_model_for_kbit_training)."""
    quantizes_experts: bool = False  # experts are quantized as other products are; otherwise they keep 16 bits
    adapter_bytes: float = 4.0  # bytes per weight of an adapter

    def __post_init__(self) -> None:
        if self.adapts and not 1 <= self.rank <= MAX_RANK:
            raise UserError(
                f"{self.method} with rank {self.rank}: expected a whole number from 1 to {MAX_RANK}, such as {self.method}:16"
            )
        if self.base and not self.adapts:
            raise UserError(
                f"a base in {self.base} is frozen, and {self.method} trains it; give lora:16 or dora:16, or leave out --base"
            )
        if not self.adapts and (self.rank or self.targets):
            raise UserError(f"{self.method} has neither rank nor targets; {EXPECTED}")
        if self.frozen_layers < 0 or (self.frozen_layers and self.method != "freeze"):
            raise UserError(f"{self.method} with {self.frozen_layers} frozen layers; {EXPECTED}")

    @property
    def adapts(self) -> bool:
        """Whether the base is frozen and adapters are trained."""
        return self.method in ("lora", "dora", "qlora")

    @property
    def stored(self) -> Base:
        """The format of the frozen products; '' for 16 bits."""
        return self.base or ("nf4" if self.method == "qlora" else "")

    @property
    def quantized(self) -> bool:
        """Whether the frozen base is stored in 4 or 8 bits."""
        return bool(self.stored)

    @property
    def alpha(self) -> int:
        """The numerator of the scale of adapters, alpha / rank: twice the rank, as in most published recipes."""
        return 2 * self.rank

    def write(self) -> str:
        """Return the text that `parse` reads as this method."""
        if self.method == "full":
            return "full"
        if self.method == "freeze":
            return f"freeze:{self.frozen_layers}"
        listed = "" if self.targets == (ALL_LINEAR,) else f":{','.join(self.targets)}"
        return f"{self.method}:{self.rank}{listed}"


FULL = Finetune()
SAME_COST: dict[str, str] = dict.fromkeys(("rslora", "lora+", "loraplus", "pissa", "olora"), "lora")
"""Kinds of LoRA with another scale, learning rate or start, which cost the same."""


def parse_base(text: str) -> Base:
    """Parse the format of a frozen base: '' or one of BASES, in the words of bitsandbytes, GPTQ and AWQ."""
    word = re.sub(r"[\s_]", "-", text.strip().lower())
    found = BASE_WORDS.get(word, word)
    if found not in BASES:
        raise UserError(
            f"unknown format {quoted(text)} of a frozen base{nearest(word, BASES)}; expected one of {', '.join(BASES[1:])}"
        )
    return found


BASE_WORDS = {
    **dict.fromkeys(("none", "16", "bf16", "fp16", "16bit", "16-bit"), ""),
    **dict.fromkeys(("4bit", "4-bit", "bnb-nf4", "bnb4", "bnb-4bit", "int4"), "nf4"),
    **dict.fromkeys(("8bit", "8-bit", "bnb-int8", "bnb8", "bnb-8bit", "llm.int8"), "int8"),
    **dict.fromkeys(("gptq-int4", "gptq-4bit"), "gptq"),
    **dict.fromkeys(("awq-int4", "awq-4bit"), "awq"),
}  # fmt: skip
"""Other words for formats of a frozen base."""


def parse(text: str, base: str = "") -> Finetune:
    """Parse 'full', 'lora:16', 'lora:16:q_proj,v_proj', 'dora:8:attention', 'qlora:64' or 'freeze:24', over a base in another format."""
    return replace(_parsed(text), base=parse_base(base)) if base else _parsed(text)


def _parsed(text: str) -> Finetune:
    word, _, rest = text.strip().partition(":")
    method = SAME_COST.get(word.lower(), word.lower())
    if method not in METHODS:
        raise UserError(f"unknown fine-tuning method {quoted(text)}{nearest(method, METHODS)}; {EXPECTED}; DPO: --objective")
    if method == "full":
        if rest or ":" in text:
            raise UserError(f"{quoted(text)}: full trains every parameter and has no options; {EXPECTED}")
        return FULL
    if method == "freeze":
        return Finetune(method, frozen_layers=_whole(rest, text))
    number, separator, listed = rest.partition(":")
    rank = _whole(number, text) if ":" in text else DEFAULT_RANK
    targets = tuple(dict.fromkeys(name.strip() for name in listed.split(",")))
    if separator and not all(re.fullmatch(r"[A-Za-z_][\w.\-]*", name) or _is_regex(name) for name in targets):
        raise UserError(f"{quoted(text)}: targets are names of modules, or a regular expression, joined by commas; {EXPECTED}")
    return Finetune(cast(Method, method), rank, targets if separator else (ALL_LINEAR,))


def _is_regex(text: str) -> bool:
    """Return whether a target is a regular expression, as PEFT takes one."""
    try:
        re.compile(text)
    except re.error:
        return False
    return bool(re.search(r"[*+?()|\\\[\]^$]", text)) and len(text) < MAX_PATTERN


MAX_PATTERN = 500  # characters of a regular expression


def _whole(digits: str, text: str) -> int:
    if not digits:
        raise UserError(f"{quoted(text)} lacks a number after the colon; {EXPECTED}")
    if not re.fullmatch(r"\d{1,6}", digits):
        raise UserError(f"{quoted(text)}: {quoted(digits)} is not a whole number; {EXPECTED}")
    return int(digits)
