"""Modules: the linear layers of a model by their names in transformers, which adapters are attached to.

Experts are parameters in transformers 5, not linear layers. PEFT adapts those of the types that it converts
(peft/utils/transformers_weight_conversion.py); their architecture files name them.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

from meshwise.errors import UserError, nearest, quoted
from meshwise.models.model import Model, family_of
from meshwise.models.op import ALL_LINEAR, Op

GROUPS: Mapping[str, tuple[str, ...]] = {"attention": ("attention", "linear attention", "ssm", "ttt"), "mlp": ("ffw", "experts")}
"""Short words for targets: the parts of a model whose linear layers they name."""
UNNAMED = "*"  # the key of types whose linear layers have no names here
MIXERS = ("self_attn", "attn", "attention", "self_attention", "linear_attn", "mixer", "mamba")
"""Names of the modules that hold the projections of attention or of another mixer."""
MAX_GATE_OUTPUTS = 64  # outputs up to which a layer counts as a gate or a router, which 'all-linear' may adapt with any rank


def is_pattern(target: str) -> bool:
    """Return whether a target is a regular expression, which PEFT compares with the whole name of a module."""
    try:
        re.compile(target)
    except re.error:
        return False
    return bool(re.search(r"[*+?()|\\\[\]^$]", target))


@dataclass(frozen=True)
class Module:
    """One linear layer: an Op, or several Ops that transformers computes as one product. An Op that is several layers there is one Module
    with their names, which targets choose together."""

    path: str  # the end of its name: 'q_proj', 'mlp.c_proj'; several are separated by spaces: 'in_proj_qkv in_proj_z'
    block: str
    ops: tuple[Op, ...]
    stacked: int = 1
    """Projections of an expert that are one parameter in transformers: an adapter of each spans the outputs of all."""

    @property
    def name(self) -> str:
        return self.path.rpartition(".")[2]

    @property
    def layers(self) -> int:
        """Linear layers that read the same input."""
        return len(self.path.split())

    @property
    def n(self) -> int:
        return sum(op.n for op in self.ops)

    @property
    def k(self) -> int:
        return self.ops[0].k

    @property
    def count(self) -> int:
        return self.ops[0].count

    def matches(self, target: str) -> bool:
        """Return whether a target names this module, as PEFT compares them: by the end of the name."""
        if target == ALL_LINEAR or self.path == target or self.path.endswith(f".{target}"):
            return True
        if is_pattern(target):
            return any(re.fullmatch(target, name) for name in self.full_names())
        return self.ops[0].part in GROUPS.get(target, ())

    def full_names(self) -> Iterable[str]:
        """Yield the names that the module may have in transformers in the layers 0 and 1: of its parents the usual ones of its part."""
        part = self.ops[0].part
        parents = (
            ("mlp", "feed_forward", "ffn", "mlp.experts.0", "block_sparse_moe.experts.0") if part in GROUPS["mlp"] else MIXERS
        )
        for parent in parents:
            for stem in ("model.layers", "transformer.h", "transformer.encoder.layers", "model.language_model.layers"):
                for layer in (0, 1):
                    yield f"{stem}.{layer}.{parent}.{self.name}"

    def adapter(self, rank: int, magnitudes: bool = False) -> int:
        """Return the parameters of one adapter: rank x (inputs + outputs), and with DoRA one magnitude per output."""
        return rank * (self.stacked * self.n + self.layers * self.k) + self.n * magnitudes


@lru_cache(maxsize=16)
def modules(model: Model) -> tuple[Module, ...]:
    """Return every linear layer except the output head, those of equal layers together."""
    module = family_of(model.model_type)
    names: Mapping[str, str] = module.module_names(model.model_type) if hasattr(module, "module_names") else {}
    joined: dict[tuple[str, str, str], list[Op]] = {}
    if UNNAMED in names:
        return ()
    for block, op in model.placed:
        if op.kind == "matmul" and op.name in names:
            joined.setdefault((block, op.name.rpartition(".")[0], names[op.name]), []).append(op)
    found = [Module(path, block, tuple(ops)) for (block, _, path), ops in joined.items()]
    # PEFT moves a name that experts have to their parameters: dense and shared layers of the same name keep no adapter
    moved = {module.name for module in found if module.ops[0].expert}
    found = [module for module in found if module.ops[0].expert or module.name not in moved]
    return tuple(replace(module, stacked=_stacked(module, found)) for module in found)


def _stacked(module: Module, found: Iterable[Module]) -> int:
    """Return how many projections of an expert read its input: gate and up are one parameter."""
    op = module.ops[0]
    return sum(other.block == module.block and other.ops[0].expert and other.k == op.k for other in found) if op.expert else 1


def targeted(model: Model, targets: Iterable[str], rank: int) -> tuple[Module, ...]:
    """Return the modules that targets name. UserError for a target that the model lacks, or a rank above a module's smaller side."""
    known = modules(model)
    if not known:
        which = f"the linear layers of {model.name} (model_type '{model.model_type}')"
        raise UserError(f"{which} have no names for adapters; expected full or freeze:N")
    chosen: dict[int, Module] = {}
    for target in targets:
        found = {i: module for i, module in enumerate(known) if module.matches(target)}
        if not found:
            names = list(dict.fromkeys(module.name for module in known))
            raise UserError(
                f"{model.name} has no module {quoted(target)}{nearest(target, names)}; "
                f"it has {', '.join(names)}, and {ALL_LINEAR}, {', '.join(GROUPS)} name several"
            )
        wide = [
            module
            for module in found.values()
            if target not in (ALL_LINEAR, *GROUPS) or min(module.n, module.k) > MAX_GATE_OUTPUTS
        ]
        narrow = min(wide, key=lambda module: min(module.n, module.k), default=None)
        if narrow and rank > (most := min(narrow.n, narrow.k)):
            sides = f"{narrow.name} ({narrow.n} x {narrow.k})"
            raise UserError(f"rank {rank} exceeds the smaller side of {sides}; expected at most {most}")
        chosen |= found
    return tuple(module for _, module in sorted(chosen.items()))
