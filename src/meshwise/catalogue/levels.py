"""Levels: coefficients that belong to a chip's architecture, to a framework or to a network, fitted to all tables together.

A question about a chip and a framework that were never measured together still has what is known about each of them. `choose` composes its
calibration: the prior of the architecture, then what data/levels.toml knows about chip, framework and network, then a calibration that was
fitted to this very chip and framework, where there is one.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from meshwise.catalogue import calibrations, files
from meshwise.catalogue.calibrations import Calibration, Level, coefficients
from meshwise.catalogue.chips import Chip, Cluster, Link, fabric_of
from meshwise.catalogue.frameworks import Framework, find_framework, flash_share
from meshwise.errors import UserError
from meshwise.units import parse

SOLD_FABRICS = ("infiniband", "efa", "roce")  # networks that today's GPUs are sold with, by vendors and clouds
Values = Mapping[str, float]


@dataclass(frozen=True)
class Levels:
    """Coefficients by level: of architectures, of frameworks, of networks; and the intervals of predictions that rest on them."""

    chip: Mapping[str, Values] = field(default_factory=dict[str, Values])
    framework: Mapping[str, Values] = field(default_factory=dict[str, Values])
    fabric: Mapping[str, Values] = field(default_factory=dict[str, Values])
    spread: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Fields of a Calibration that describe its errors: waiting, low, high, between, memory_spread."""
    fitted_on: str = ""

    def values(self, keys: Mapping[Level, str]) -> dict[str, float]:
        """Return the coefficients of an architecture, a framework and a network."""
        found: dict[str, float] = {}
        for level, key in keys.items():
            found |= getattr(self, level).get(key, {})
        return found


NONE = Levels()
PRIOR_CONTEXT = Calibration().context
_KNOWN = coefficients(Calibration)


@files.cached
def levels() -> Levels:
    """Read data/levels.toml."""
    path = files.BUILT_IN / "levels.toml"
    table: dict[str, Any] = files.table_of(path)
    parts = {level: table.get(level, {}) for level in ("chip", "framework", "fabric")}
    parsed = {level: {key: _parsed(values) for key, values in part.items()} for level, part in parts.items()}
    spread = {name: _spread_value(value) for name, value in table.get("spread", {}).items()}
    return Levels(**parsed, spread=spread, fitted_on=str(table.get("fitted_on", "")))


def _spread_value(value: Any) -> float | tuple[float, ...]:
    return tuple(map(float, cast(list[float], value))) if isinstance(value, list) else float(value)


def _parsed(values: Mapping[str, Any]) -> dict[str, float]:
    unknown = set(values) - set(_KNOWN)
    if unknown:
        raise UserError(f"levels.toml: unknown coefficient {unknown.pop()}")
    return {
        name: parse(value, "bytes" if name == "context" else "seconds") if isinstance(value, str) else float(value)
        for name, value in values.items()
    }


def keys_of(chip: Chip, framework: Framework, fabric: str) -> dict[Level, str]:
    """Return the key of each level for a question. A program has its own coefficients on each kind of chip: XLA's on TPUs are not those
    of GPUs."""
    program = framework.key if chip.kind == "gpu" else f"{framework.key} on {chip.kind}"
    return {"chip": chip.architecture, "framework": program, "fabric": fabric}


def composed(chip: Chip, framework: Framework, fabric: str, known: Levels = NONE) -> Calibration:
    """Compose a calibration from the architecture's prior, the framework's attention kernel, and what `known` says of each level."""
    prior = calibrations.prior_of(chip)
    newest = find_framework(framework.program) if framework.program else framework
    flash = prior.flash if chip.kind == "cpu" else flash_share(newest.kernel(chip.architecture), chip.architecture)
    values = known.values(keys_of(chip, framework, fabric))
    named = {
        "key": " + ".join(filter(None, (chip.architecture, framework.key, fabric))) if values else prior.key,
        "fitted_on": known.fitted_on if values else prior.fitted_on,
        "fabric": fabric,
    }
    start = {"flash": flash} | _beside_tensors(framework, chip, prior)
    if "context" in values:
        start["collectives"] = 0.0
    # errors on sources left out already hold what differs between sources
    return replace(prior, **(start | values | dict(known.spread) | named | {"between": 0.0, "learned": tuple(values)}))


def choose(chip: Chip, framework: Framework, network: Link | None = None, *, stated: bool = True) -> Calibration:
    """Return the calibration for a chip, a framework and a network: one that was fitted to this chip and framework, with the coefficients
    of another network where it was fitted on another; else one that is composed of levels. A network that nobody stated (`stated`) is the
    vendor's, or the one of the calibration where clouds and vendors sell the chip with it."""
    own, fabric = calibrations.fitted_to(chip, framework.key), fabric_of(network)
    if own is None:
        return composed(chip, framework, fabric, levels())
    if not own.frameworks or own.context == PRIOR_CONTEXT:  # probed, not fitted to runs of any framework
        own = replace(own, **_beside_tensors(framework, chip, own))
    if own.shipped:  # fitted to runs of somebody else's machine
        own = replace(own, between=float(levels().spread.get("between", 0.0)), expert_spread=_expert_spread(own))
    assumed = not stated and own.fabric in SOLD_FABRICS
    if not own.fabric or own.fabric == fabric or assumed or network is None:
        return own
    return replace(own, **_of_fabric(fabric), key=f"{own.key} + {fabric or 'another network'}")


CONTEXT_PER_SM, TURING_CONTEXT_PER_SM = 5.5e6, 3.75e6
"""Bytes of a CUDA context with the kernels of PyTorch loaded, which grow with the threads that can be resident: 0.58 GiB on an H200 with
132 SMs (a probe), up to 0.85 beside what torch reserved on an A100 with 108 (fms_a100_liger), 0.14 GiB on a T4 with 40 SMs of half as many
threads (fitcheck_t4)."""
COLLECTIVE_BYTES = 1.6e9
"""Buffers of NCCL per device. Assumed: two and four A100 under FSDP had 2.3 and 3 GiB more than one (fms_a100_liger), blocks for gathered
weights among them."""


def _beside_tensors(framework: Framework, chip: Chip, known: Calibration) -> dict[str, float]:
    """Return the bytes beside tensors of a calibration that no run of the framework was fitted for."""
    stated = framework.on(chip.kind).workspace
    if stated or known.context != PRIOR_CONTEXT or chip.kind != "gpu" or not chip.sms or chip.vendor != "NVIDIA":
        return {"context": stated or known.context}
    per_sm = TURING_CONTEXT_PER_SM if chip.architecture == "Turing" else CONTEXT_PER_SM
    return {"context": per_sm * chip.sms, "collectives": COLLECTIVE_BYTES}


def _expert_spread(own: Calibration) -> float:
    return max(own.expert_spread, float(levels().spread.get("expert_spread", 0.0)))


def _of_fabric(fabric: str) -> dict[str, float]:
    """Return the coefficients of a network: fitted, or the prior's."""
    prior = Calibration()
    names = [name for name, about in _KNOWN.items() if about.level == "fabric"]
    return {name: getattr(prior, name) for name in names} | dict(levels().fabric.get(fabric, {}))


def choose_for(cluster: Cluster, framework: Framework) -> Calibration:
    """Return the calibration for a framework on a cluster; `choose` has the rules."""
    assumed = any(note.startswith("network not given") for note in cluster.notes)
    return choose(cluster.chip, framework, cluster.network if cluster.node_count > 1 else None, stated=not assumed)
