"""Figures: values derived from what a run states: tokens per step, rates, TFLOP/s and MFU by each formula, cost; NaN if unknown."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, cached_property

from meshwise.catalogue.cards import chip_in_text
from meshwise.catalogue.chips import Chip
from meshwise.errors import UserError
from meshwise.models import find
from meshwise.models.model import Model
from meshwise.runs import derive
from meshwise.runs.model import model_of, states_sizes_of
from meshwise.runs.run import Run
from meshwise.runs.table import SERVE_FIGURES

EXACT, ROUGH = 0.03, 0.10
"""Largest relative difference of two figures that agree; the larger one where a source rounds or writes 'about'."""
WIDER = 1.18  # stated over counted parameters from which the run has experts, or wider layers than it states
WITH_RECOMPUTE = ("8N", "8N of the layers", "Megatron + recompute")
"""Formulas that count the recomputed forward pass: their share of the peak is HFU."""


@dataclass(frozen=True)
class Shape:
    """Dimensions from which FLOPs are counted; NaN where unknown."""

    params: float
    layer_params: float
    layers: float
    hidden: float
    vocab: float
    seq: float


@dataclass(frozen=True)
class Figures:
    """One run and the values derived from it."""

    run: Run
    source: str  # the file that states it

    @property
    def where(self) -> str:
        return f"{self.source}: {self.run.where}"

    @cached_property
    def served(self) -> bool:
        """Whether it measures a served model rather than training."""
        return any(map(self.run.stated, SERVE_FIGURES)) or bool(self.run.text("weights"))

    @cached_property
    def complete(self) -> Run:
        """The run with all that follows from its figures."""
        return derive.complete(self.run)

    @cached_property
    def chip(self) -> Chip | None:
        return _find_chip(self.run.text("chip")) if self.run.text("chip") else None

    @cached_property
    def named(self) -> Model | None:
        """The model that the run names; None if that is unknown, or if the run states other sizes."""
        found = find.named(self.run.text("model"), self.run.number("params"))
        return found if found and states_sizes_of(self.run, found) else None

    @property
    def devices(self) -> float:
        return self.complete.number("devices")

    @property
    def dp(self) -> float:
        """Data-parallel ranks: stated, or devices / (tp x pp x cp)."""
        return self.complete.number("dp")

    @property
    def batch(self) -> float:
        """Sequences per step."""
        return self.complete.number("batch")

    @cached_property
    def tokens(self) -> float:
        """Tokens per step: batch x sequence length, or the stated number if the batch is not known."""
        counted = self.batch * self.run.number("seq")
        return counted if math.isfinite(counted) else self.run.number("tokens_per_step")

    @cached_property
    def stated_rate(self) -> float:
        """Tokens per second of all devices, as stated."""
        run = self.run
        for value in (
            run.number("tokens_per_second"),
            run.number("tokens_per_second_per_device") * self.devices,
            run.number("samples_per_second") * run.number("seq"),
        ):
            if math.isfinite(value):
                return value
        return math.nan

    @cached_property
    def rate(self) -> float:
        """Tokens per second of all devices: from the step time if stated, since a clock is seldom wrong."""
        timed = self.tokens / self.run.number("seconds") if self.run.number("seconds") > 0 else math.nan
        return timed if math.isfinite(timed) else self.stated_rate

    @cached_property
    def seconds(self) -> float:
        """Seconds per step: stated, or from the stated rate."""
        if self.run.stated("seconds"):
            return self.run.number("seconds")
        return self.tokens / self.stated_rate if self.stated_rate > 0 else math.nan

    @cached_property
    def memory(self) -> float:
        """Peak bytes of the fullest device."""
        return self.run.number("peak") if self.run.stated("peak") else self.run.number("memory")

    @cached_property
    def peak_flops(self) -> float:
        """FLOP/s of the chip in the stated precision, by default bf16."""
        if self.chip is None:
            return math.nan
        flops: Mapping[str, float] = {str(kind): rate for kind, rate in self.chip.flops.items()}
        named = next((kind for kind in ("fp8", "fp32", "tf32") if kind in self.run.text("precision").lower()), "bf16")
        return flops.get(named) or flops.get("bf16") or flops.get("fp16") or math.nan

    @cached_property
    def shape(self) -> Shape:
        """Sizes of the model that the run names, or that is built from the sizes it states."""
        run, params, vocab = self.run, self.run.number("params"), self.run.number("vocab")
        model = self.named or _built(self.complete)
        if model is None:
            layers, hidden = run.number("layers"), run.number("hidden")
            return Shape(params, params - vocab * hidden, layers, hidden, vocab, run.number("seq"))
        d = model.decoder
        inner, total = model.matmul_flops(1) / 2 - d.hidden * d.vocab, float(model.active_params)
        if not self.named and not math.isfinite(vocab):  # built with a usual vocabulary, which the run does not state
            return Shape(params, inner, d.layers, d.hidden, vocab, run.number("seq"))
        if not self.named and params > WIDER * total:  # experts, or wider layers than stated
            inner, total = params - d.vocab * d.hidden, params
        return Shape(total, inner, d.layers, d.hidden, d.vocab, run.number("seq"))

    @cached_property
    def formulas(self) -> dict[str, float]:
        """FLOPs per token by each common formula; formulas whose inputs are unknown are left out.

        6N: Kaplan et al. 2020. Megatron: arXiv:2104.04473, eq. 3, unmasked attention, without or with the recomputed forward pass (8
        for 6). PaLM: arXiv:2204.02311, appendix B. "of the layers": without embedding, head and attention, as Megatron-DeepSpeed
        counted until February 2022. Serving computes 2N, one forward pass.
        """
        s = self.shape
        attention, head = s.layers * s.hidden * s.seq, s.hidden * s.vocab
        flops = {
            "6N": 6 * s.params,
            "8N": 8 * s.params,
            "6N of the layers": 6 * s.layer_params,
            "8N of the layers": 8 * s.layer_params,
            "PaLM": 6 * s.params + 12 * attention,
            "PaLM, causal": 6 * s.params + 6 * attention,
            "Megatron": 6 * s.layer_params + 12 * attention + 6 * head,
            "Megatron + recompute": 8 * s.layer_params + 16 * attention + 6 * head,
        }
        return {name: value for name, value in flops.items() if math.isfinite(value) and value > 0}

    @cached_property
    def printed_flops(self) -> float:
        """FLOPs per token implied by the TFLOP/s that the source prints, or by its MFU."""
        run = self.run
        flops = run.number("tflops")
        if not math.isfinite(flops):
            share = run.number("mfu") if run.stated("mfu") else run.number("hfu")
            flops = share * self.peak_flops
        return flops * self.devices / self.rate if self.rate > 0 else math.nan

    @cached_property
    def printed_formula(self) -> tuple[str, float]:
        """The formula that the printed TFLOP/s follow ('' if none is close), and printed over computed by the closest formula."""
        if not self.formulas or not math.isfinite(self.printed_flops):
            return "", math.nan
        name = min(self.formulas, key=lambda key: abs(math.log(self.printed_flops / self.formulas[key])))
        ratio = self.printed_flops / self.formulas[name]
        # A size stated with two or three digits is only known to 3%.
        tolerance = 0.01 if math.isfinite(self.shape.layer_params) else 0.03
        return (name if abs(ratio - 1) <= tolerance else ""), ratio

    @cached_property
    def device_flops(self) -> dict[str, float]:
        """FLOP/s of one device by each formula."""
        each = self.rate / self.devices
        return {name: flops * each for name, flops in self.formulas.items()} if math.isfinite(each) else {}

    @cached_property
    def mfu(self) -> dict[str, float]:
        """Share of the peak by each formula."""
        known = math.isfinite(self.peak_flops)
        return {name: flops / self.peak_flops for name, flops in self.device_flops.items()} if known else {}

    @property
    def model_mfu(self) -> float:
        """Share of the peak by 6N, or by the first known formula that does not count recompute."""
        return next((share for name, share in self.mfu.items() if name not in WITH_RECOMPUTE), math.nan)

    @cached_property
    def dollars_per_million_tokens(self) -> float:
        """Dollars per million tokens at the list price for renting the chips."""
        rent = self.chip.rent if self.chip else None
        return rent * self.devices / self.rate * 1e6 if rent and self.rate > 0 else math.nan

    @cached_property
    def rank_balance(self) -> float:
        """Rate of the slowest rank over the mean."""
        rates = self.run.ranks.get("tokens_per_second", ())
        return min(rates) / (sum(rates) / len(rates)) if rates and sum(rates) > 0 else math.nan

    def tolerance(self, *names: str) -> float:
        """Return the largest relative difference at which figures with these names agree."""
        return ROUGH if self.run.rough(*names) else EXACT

    def setup_key(self, *without: str) -> tuple[object, ...]:
        """Return a key that is equal for runs of the same setup, ignoring the fields in `without`."""
        names = (*_LAYOUT, *_MODEL)
        numbers = tuple(_or_none(self.run.number(name)) for name in names if name not in without)
        words = tuple(
            self.run.text(name).lower()
            for name in ("chip", "precision", "recompute", "sp", "weights", "split", "flash", "framework", "model")
        )
        tags = tuple(tag for tag in self.run.tags if tag[0].lower() not in _RESULTS)
        batch = () if "batch" in without else (self.batch,)
        return (self.source, *numbers, *batch, *words, *tags, self.devices)


_LAYOUT = ("dp", "tp", "pp", "cp", "ep", "vpp", "zero", "mbs", "accumulation", "nodes", "network_gbps")
_MODEL = (
    "params", "layers", "hidden", "heads", "kv_heads", "ffn", "vocab", "seq", "prompt", "output", "users", "rate", "depth", "draft",
    "prefix", "per_device_batch",
)  # fmt: skip
_RESULTS = frozenset({"convergence", "quality", "notes"})


@cache
def _find_chip(text: str) -> Chip | None:
    try:
        return chip_in_text(text)
    except UserError:
        return None


def _built(run: Run) -> Model | None:
    """Return the model of the sizes that a run states; None where they build none."""
    try:
        return model_of(run, {}, [])
    except UserError:
        return None


def _or_none(value: float) -> float | None:
    """Return the value; None for NaN, which is not equal to itself."""
    return value if math.isfinite(value) else None
