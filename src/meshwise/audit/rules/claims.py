"""Rules over statements in words: against the figures of the document, and against the meaning of its abbreviations."""

import math
import tomllib
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from meshwise.audit.figures import Figures
from meshwise.audit.finding import Finding, near, number
from meshwise.runs.reading import Claim


class Statement(NamedTuple):
    """A claim and the file that makes it."""

    source: str
    claim: Claim

    @property
    def where(self) -> str:
        return f"{self.source}: {self.claim.where}"


Rule = Callable[[Sequence[Statement], Sequence[Figures]], Iterator[Finding]]


def _places(statements: Sequence[Statement]) -> tuple[str, ...]:
    return tuple(statement.where for statement in statements)


def products(statements: Sequence[Statement], runs: Sequence[Figures]) -> Iterator[Finding]:
    """A product that the text works out is right."""
    for statement in statements:
        if statement.claim.kind != "product":
            continue
        stated, *factors = statement.claim.values
        product = math.prod(factors)
        if len(factors) > 1 and stated > 0 and not near(stated, product, 0.03):
            left_out = next((factor for factor in factors if factor > 1 and near(stated * factor, product, 0.01)), 0.0)
            hint = f": the factor {number(left_out)} is missing" if left_out else ""
            yield Finding(
                rule="arithmetic",
                certainty="certain",
                where=(statement.where,),
                message=f"the text gives {number(stated)} for a product that is {number(product)}{hint}",
                arithmetic=f"{' x '.join(map(number, factors))} = {number(product)}",
            )


def conflicts(statements: Sequence[Statement], runs: Sequence[Figures]) -> Iterator[Finding]:
    """A figure has one value: outside of tables, and in a table and the text above it."""
    for statement in statements:
        claim = statement.claim
        if claim.kind == "conflict":
            above, below = claim.values
            fits = _matching_batch(runs, statement, above) if claim.about[0] == "batch" and len(claim.about) > 1 else ""
            yield Finding(
                rule="quoted twice",
                certainty="likely" if fits else "unusual",
                where=(statement.where,),
                message=f"{claim.text}{fits}",
                arithmetic=f"{number(below)} / {number(above)} = {below / above if above else math.nan:.3g}",
            )


def _matching_batch(runs: Sequence[Figures], statement: Statement, batch: float) -> str:
    """Return, as the end of a sentence, that the printed TFLOP/s of the row match `batch`; '' if they do not."""
    for f in runs:
        same = f.source == statement.source and f.run.where == statement.claim.where
        if same and math.isfinite(f.printed_flops) and f.formulas:
            other = f.printed_flops * f.batch / batch
            name = min(f.formulas, key=lambda key: abs(math.log(other / f.formulas[key])))
            if near(other, f.formulas[name], 0.02):
                return f"; the TFLOP/s are those of {number(batch)} ({name} x {other / f.formulas[name]:.3f})"
    return ""


def rates_twice(statements: Sequence[Statement], runs: Sequence[Figures]) -> Iterator[Finding]:
    """One model on as many GPUs has one speed; otherwise prompt and generated tokens, or two measurements, are mixed up."""
    subjects: dict[tuple[str, float], list[Statement]] = {}
    for statement in statements:
        claim = statement.claim
        if claim.kind == "rate" and claim.about[0] and claim.values[0] > 0:
            gpus = claim.values[1] if math.isfinite(claim.values[1]) else 0.0
            subjects.setdefault((claim.about[0], gpus), []).append(statement)
    for (model, gpus), group in subjects.items():
        first: dict[float, Statement] = {}
        for statement in group:
            if not any(near(statement.claim.values[0], value, 0.05) for value in first):
                first[statement.claim.values[0]] = statement
        kinds = {statement.claim.about[1] or "unspecified" for statement in group}
        if len(first) < 2:
            continue
        shown = "; ".join(
            f"{number(value)} tok/s ({statement.claim.about[1] or 'prompt or generated not stated'}) at {statement.where}"
            for value, statement in first.items()
        )
        mixed = ", without separating prompt and generated tokens" if "prompt" in kinds and len(kinds) > 1 else ""
        on = f" on {number(gpus)} GPUs" if gpus else ""
        values = list(first)
        yield Finding(
            rule="quoted twice",
            certainty="likely",
            where=_places(list(first.values())),
            message=f"the speed of {model}{on} is given as {' and '.join(map(number, values))} tok/s{mixed}: these are two measurements",
            arithmetic=f"{shown}; {number(max(values))} / {number(min(values))} = {max(values) / min(values):.2f}",
        )


def prompt_speed(statements: Sequence[Statement], runs: Sequence[Figures]) -> Iterator[Finding]:
    """A prompt is processed many tokens at a time: a few tokens per second is the speed of generation."""
    slow = [s for s in statements if s.claim.kind == "rate" and s.claim.about[1] == "prompt" and 0 < s.claim.values[0] < 20]
    if slow:
        value = slow[0].claim.values[0]
        yield Finding(
            rule="prompt and generation",
            certainty="unusual",
            where=_places(slow[:4]),
            message=f"{number(value)} prompt tokens/s is a speed of generation: prompts are processed in parallel, tens of times faster",
            arithmetic=f"a prompt of 1,000 tokens would take {number(1000 / value)} s",
        )


@cache
def glossary() -> dict[str, list[str]]:
    """Return the accepted meanings of each abbreviation, the usual one first."""
    return tomllib.loads(files("meshwise").joinpath("data/glossary.toml").read_text(encoding="utf-8"))


def meanings(statements: Sequence[Statement], runs: Sequence[Figures]) -> Iterator[Finding]:
    """An abbreviation is expanded to its accepted meaning."""
    wrong: dict[str, list[Statement]] = {}
    for statement in statements:
        if statement.claim.kind == "meaning" and _is_wrong(statement.claim):
            wrong.setdefault(statement.claim.about[0], []).append(statement)
    for short, group in wrong.items():
        yield Finding(
            rule="words",
            certainty="certain",
            where=_places(group[:4]),
            message=f"{short.upper()} is {glossary()[short][0]}, not {group[0].claim.about[1]}",
            arithmetic=f"stated {len(group)} time{'s' * (len(group) > 1)}",
        )


def _is_wrong(claim: Claim) -> bool:
    short, long, *how = claim.about
    known = glossary().get(short)
    if known is None:
        return False
    squeezed = long.replace("-", " ").rstrip("s ")
    if any(meaning.replace("-", " ").rstrip("s") in squeezed or squeezed in meaning.replace("-", " ") for meaning in known):
        return False
    # 'GPUs are left out' does not define a GPU; 'Vrams are virtual memory' does: it ends in the same word as the right meaning.
    return not how or any(meaning.split()[-1] == squeezed.split()[-1] for meaning in known)


def efficiency(statements: Sequence[Statement], runs: Sequence[Figures]) -> Iterator[Finding]:
    """'x% scaling efficiency' agrees with the rates and devices of the same document, and their batches can be compared."""
    for source in dict.fromkeys(s.source for s in statements if s.claim.kind == "efficiency"):
        pair = _fewest_and_most([f for f in runs if f.source == source])
        claims = [s for s in statements if s.source == source and s.claim.kind == "efficiency"]
        if pair is None:
            yield Finding(
                rule="scaling",
                certainty="unusual",
                where=_places(claims[:2]),
                message=f"'{claims[0].claim.text}' is claimed without two rates to compute it from",
                arithmetic="no rates at two numbers of devices",
            )
            continue
        few, many = pair
        gain, more = many.stated_rate / few.stated_rate, many.devices / few.devices
        real = gain / more
        rates = f"{number(many.stated_rate)} / {number(few.stated_rate)} = {gain:.2f}"
        work = f"{rates} times the rate on {more:g} times the devices: {real:.1%}"
        for statement in claims:
            values = statement.claim.values
            claimed = values[0] / values[1] if len(values) == 2 and values[1] else values[0]
            if not near(claimed, real, 0.03):
                message = f"'{statement.claim.text}' is claimed, the rates give {real:.0%}"
                yield Finding(rule="scaling", certainty="certain", where=(statement.where,), message=message, arithmetic=work)
        if message := _batch_fault(few, many):
            yield Finding(rule="scaling", certainty="unusual", where=(few.where, many.where), message=message, arithmetic=work)


def _batch_fault(few: Figures, many: Figures) -> str:
    """Return in a sentence why the batches of two runs do not give a scaling efficiency, or ''."""
    if not math.isfinite(few.batch * many.batch):
        return "the scaling efficiency compares runs that do not state both batches: it may be neither strong nor weak scaling"
    if near(few.batch, many.batch, 0.05) or near(few.batch / few.devices, many.batch / many.devices, 0.05):
        return ""
    both = f"batches of {number(few.batch)} and {number(many.batch)}"
    return f"the scaling efficiency compares {both}: this is neither strong nor weak scaling"


def _fewest_and_most(runs: Sequence[Figures]) -> tuple[Figures, Figures] | None:
    """Return the runs with the fewest and with the most devices among those that state a rate."""
    rated = sorted(
        (f for f in runs if math.isfinite(f.stated_rate) and f.stated_rate > 0 and f.devices > 0), key=lambda f: f.devices
    )
    return (rated[0], rated[-1]) if rated and rated[-1].devices > rated[0].devices else None


def spreads(statements: Sequence[Statement], runs: Sequence[Figures]) -> Iterator[Finding]:
    """'±6% across GPUs' agrees with the rates of the ranks."""
    for statement in statements:
        ranks = [f.run.ranks for f in runs if f.source == statement.source and "tokens_per_second" in f.run.ranks]
        rates = ranks[0]["tokens_per_second"] if ranks else ()
        if statement.claim.kind != "spread" or len(rates) < 2:
            continue
        mean = sum(rates) / len(rates)
        off = max(max(rates) / mean - 1, 1 - min(rates) / mean)
        if off > 1.2 * statement.claim.values[0]:
            yield Finding(
                rule="balance",
                certainty="certain",
                where=(statement.where,),
                message=f"'{statement.claim.text}' is claimed, but ranks are up to {off:.1%} off the mean",
                arithmetic=f"{number(min(rates))} to {number(max(rates))}, mean {number(mean)}",
            )


RULES: tuple[Rule, ...] = (products, conflicts, rates_twice, prompt_speed, meanings, efficiency, spreads)
