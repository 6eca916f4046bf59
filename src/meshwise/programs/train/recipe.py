"""Recipes in launch files: which kernels run and what communication is hidden, in the words that several programs share."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from meshwise.catalogue.frameworks import OVERLAP_FACTS, Framework, overlap_changes, overlap_text
from meshwise.programs.kinds import Kind, word
from meshwise.programs.program import KERNELS, Key, Refusal, Setup
from meshwise.runs.run import Run, Stated, Value

FACTS = ("attention", "loss", "overlap", "graphs", "gradients")
"""Facts of FIELDS that a plan may state of its program, and that a program may write."""
OWN_SWITCHES = "overlap_"  # start of a program's own facts that hide communication: 'overlap_reduce'
HIDDEN = tuple(dict.fromkeys(name for names in OVERLAP_FACTS.values() for name in names))
OTHER_ATTENTION: dict[str, Value | None] = {
    "flash_attention": "fa2", "flash-attention-2": "fa2", "flash_attn": "fa2", "flash": "fa2", "fa2": "fa2", "fa3": "fa3", "fa4": "fa4",
    "xformers": "fa2", "kernels-community/flash-attn": "fa2", "kernels-community/flash-attn2": "fa2",
    "kernels-community/flash-attn3": "fa3", "kernels-community/vllm-flash-attn3": "fa3", "kernels-community/flash-attn4": "fa4",
}  # fmt: skip
_ATTENTION = word(
    {"fa2": "flash_attention_2", "fa3": "flash_attention_3", "fa4": "flash_attention_4", "unfused": "eager"}, OTHER_ATTENTION
)


def _attention(value: Any) -> Value | None:
    """Return the kernel of `attn_implementation`; none for PyTorch's own choice, which frameworks on PyTorch assume, and for others."""
    try:
        return _ATTENTION.read(value)
    except ValueError:
        return None


ATTENTION = Kind(_attention, _ATTENTION.write, "an attention implementation")
"""`attn_implementation` of transformers 5; its name for FA4, and the hub's names of kernels, are recalled."""
DTYPES = word(
    {"fp32": "fp32", "bf16": "bf16"}, {"float32": "fp32", "float": "fp32", "bfloat16": "bf16", "fp16": "bf16", "float16": "bf16"}
)
"""Dtypes of gradients: all 16-bit ones move the same bytes."""


def factor(value: Any) -> float | None:
    """Return the capacity of an expert over its mean load; none for a number that drops no tokens (-1)."""
    return float(value) if float(value) > 0 else None


CAPACITY = Kind(factor, float, "a number")


def tells(row: Key) -> bool:
    """Return whether a row of a program's table is about its recipe."""
    return row.fact in (*FACTS, "capacity") or row.fact.startswith((KERNELS, OWN_SWITCHES))


def overlap(facts: Run, switches: Mapping[str, str]) -> Iterator[Stated]:
    """Yield the communication that a program's switches hide. `switches`: their names by fact of Framework."""
    known = {fact: name for fact, name in switches.items() if facts.value(name) is not None}
    text = overlap_text({fact: bool(facts.value(name)) for fact, name in known.items()})
    if text:
        yield facts.meaning("overlap", text, *sorted(known.values(), key=lambda name: not facts.says(name)))


def hides(framework: Framework) -> tuple[str, ...]:
    """Return the communication that a plan hides, stated or not, as names of facts of Framework."""
    return tuple(name for name in HIDDEN if getattr(framework, name))


def hidden(setup: Setup, *, assumed: bool = True) -> dict[str, bool]:
    """Return what is hidden by fact of Framework: of a plan all that it assumes, where `assumed`; else what is stated."""
    names = setup.values.get("hides")
    if assumed and isinstance(names, tuple):
        return {name: name in names for name in HIDDEN}
    return overlap_changes(setup.text("overlap"))


def refuse(setup: Setup, title: str, can: Mapping[str, Iterable[str]]) -> Iterator[Refusal]:
    """Yield a refusal for each stated fact whose value is not in `can`, by fact; of `overlap`, the facts of Framework with a switch."""
    if setup.plan is None:
        return  # the facts of a file, which says them
    for name in ("attention", "graphs", "gradients"):
        value, known = setup.text(name), tuple(can.get(name, ()))
        if value and value not in known:
            expected = f" (it can say {', '.join(known)})" if known else ""
            yield Refusal(f"{title} has no setting for {name} {value}{expected}", {name: ""})
    stated = overlap_changes(setup.text("overlap"))
    unsaid = {name: on for name, on in stated.items() if name not in can.get("overlap", ())}
    if unsaid:
        left = overlap_text({name: on for name, on in stated.items() if name not in unsaid})
        yield Refusal(f"{title} has no setting for overlap {overlap_text(unsaid)}", {"overlap": left})
