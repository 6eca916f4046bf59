"""Finetune: which parameters of a model are trained, and how the others are stored: full, lora, dora, qlora, freeze."""

import re
from dataclasses import dataclass
from typing import Literal, cast, get_args

from meshwise.errors import UserError, nearest, quoted
from meshwise.models.op import ALL_LINEAR

Method = Literal["full", "lora", "dora", "qlora", "freeze"]
METHODS: tuple[Method, ...] = get_args(Method)
MAX_RANK = 65536
EXPECTED = "expected full, lora:RANK[:TARGETS], dora:RANK[:TARGETS], qlora:RANK[:TARGETS] or freeze:LAYERS, such as lora:16:q_proj,v_proj"


@dataclass(frozen=True)
class Finetune:
    """A way to fine-tune a model.

    full    every parameter is trained
    lora    pairs of matrices of rank `rank` beside the `targets`; everything else is frozen in 16 bits (arXiv:2106.09685)
    dora    lora, and a trained magnitude per output of each target (arXiv:2402.09353)
    qlora   lora over targets stored in nf4 with double quantization (arXiv:2305.14314)
    freeze  the embedding and the first `frozen_layers` layers are frozen, everything above is trained
    """

    method: Method = "full"
    rank: int = 0
    targets: tuple[str, ...] = ()
    """Names of modules as PEFT has them (q_proj, down_proj), or 'attention', 'mlp', 'all-linear'; () for methods without adapters."""
    frozen_layers: int = 0
    narrow: bool = False
    """The frozen weights of products have 8 bits, as narrow products read them."""

    def __post_init__(self) -> None:
        if self.adapts and not 1 <= self.rank <= MAX_RANK:
            raise UserError(
                f"{self.method} with rank {self.rank}: expected a whole number from 1 to {MAX_RANK}, such as {self.method}:16"
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
    def quantized(self) -> bool:
        """Whether the frozen base is stored in nf4."""
        return self.method == "qlora"

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


def parse(text: str) -> Finetune:
    """Parse 'full', 'lora:16', 'lora:16:q_proj,v_proj', 'dora:8:attention', 'qlora:64' or 'freeze:24'."""
    word, _, rest = text.strip().partition(":")
    method = word.lower()
    if method not in METHODS:
        raise UserError(f"unknown fine-tuning method {quoted(text)}{nearest(method, METHODS)}; {EXPECTED}")
    if method == "full":
        if rest or ":" in text:
            raise UserError(f"{quoted(text)}: full trains every parameter and has no options; {EXPECTED}")
        return FULL
    if method == "freeze":
        return Finetune(method, frozen_layers=_whole(rest, text))
    number, separator, listed = rest.partition(":")
    rank = _whole(number, text)
    targets = tuple(dict.fromkeys(name.strip() for name in listed.split(",")))
    if separator and not all(re.fullmatch(r"[A-Za-z_][\w.\-]*", name) for name in targets):
        raise UserError(f"{quoted(text)}: targets are names of modules joined by commas; {EXPECTED}")
    return Finetune(cast(Method, method), rank, targets if separator else (ALL_LINEAR,))


def _whole(digits: str, text: str) -> int:
    if not digits:
        raise UserError(f"{quoted(text)} lacks a number after the colon; {EXPECTED}")
    if not re.fullmatch(r"\d{1,6}", digits):
        raise UserError(f"{quoted(text)}: {quoted(digits)} is not a whole number; {EXPECTED}")
    return int(digits)
