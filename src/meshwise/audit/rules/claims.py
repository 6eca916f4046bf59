"""What a document says in words against its figures, or against what words mean."""

import math
import tomllib
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib.resources import files

from meshwise.audit.figures import Figures
from meshwise.audit.finding import Finding, near, number
from meshwise.audit.logs.run import Claim

Said = tuple[str, Claim]
"""The file, and what it says."""
Rule = Callable[[Sequence[Said], Sequence[Figures]], Iterator[Finding]]


def _place(said: Said) -> str:
    return f"{said[0]}: {said[1].where}"


def products(claims: Sequence[Said], runs: Sequence[Figures]) -> Iterator[Finding]:
    """Products that a text works out itself."""
    for said in claims:
        claim = said[1]
        if claim.kind != "product":
            continue
        stated, *factors = claim.values
        product = math.prod(factors)
        if len(factors) > 1 and stated > 0 and not near(stated, product, 0.03):
            work = f"{' x '.join(map(number, factors))} = {number(product)}"
            left_out = next((factor for factor in factors if factor > 1 and near(stated * factor, product, 0.01)), 0.0)
            hint = f": the factor {number(left_out)} is missing" if left_out else ""
            yield Finding(
                rule="arithmetic",
                sure="sure",
                where=(_place(said),),
                words=f"it works out {number(stated)} where its own product is {number(product)}{hint}",
                arithmetic=work,
            )


def conflicts(claims: Sequence[Said], runs: Sequence[Figures]) -> Iterator[Finding]:
    """One document that gives one figure two values, outside of a table or between a table and the text above it."""
    for said in claims:
        claim = said[1]
        if claim.kind == "conflict":
            above, own = claim.values
            fits = _fits(runs, said, above) if claim.about[0] == "global_batch_seqs" and len(claim.about) > 1 else ""
            yield Finding(
                rule="quoted twice",
                sure="likely" if fits else "look",
                where=(_place(said),),
                words=f"{claim.text}{fits}",
                arithmetic=f"{number(own)} / {number(above)} = {own / above if above else math.nan:.3g}",
            )


def _fits(runs: Sequence[Figures], said: Said, batch: float) -> str:
    """Which of two batches the printed TFLOPs of the row go with."""
    for f in runs:
        if f.source == said[0] and f.run.where == said[1].where and math.isfinite(f.printed) and f.formulas:
            other = f.printed * f.batch / batch
            name = min(f.formulas, key=lambda key: abs(math.log(other / f.formulas[key])))
            if near(other, f.formulas[name], 0.02):
                return f"; its TFLOPs are those of {number(batch)} ({name}, {other / f.formulas[name]:.3f} of it)"
    return ""


def rates_twice(claims: Sequence[Said], runs: Sequence[Figures]) -> Iterator[Finding]:
    """Tokens a second of one subject in two values; prompt tokens and generated ones are different measurements, not two of one."""
    subjects: dict[tuple[str, float], list[Said]] = {}
    for said in claims:
        claim = said[1]
        if claim.kind == "rate" and claim.about[0] and claim.values[0] > 0:
            subjects.setdefault((claim.about[0], claim.values[1] if math.isfinite(claim.values[1]) else 0.0), []).append(said)
    for (model, gpus), group in subjects.items():
        first: dict[float, Said] = {}
        for said in group:
            if not any(near(said[1].values[0], value, 0.05) for value in first):
                first[said[1].values[0]] = said
        kinds = {said[1].about[1] or "unspecified" for said in group}
        if len(first) < 2:
            continue
        shown = "; ".join(
            f"{number(value)} tok/s ({said[1].about[1] or 'of what, it does not say'}) at {_place(said)}"
            for value, said in first.items()
        )
        mixed = ", prompt and generated tokens not told apart" if "prompt" in kinds and len(kinds) > 1 else ""
        on = f" on {number(gpus)} GPUs" if gpus else ""
        values = list(first)
        given = " and ".join(map(number, values))
        work = f"{shown}; {number(max(values))} / {number(min(values))} = {max(values) / min(values):.2f}"
        yield Finding(
            rule="quoted twice",
            sure="likely",
            where=tuple(map(_place, first.values())),
            words=f"the speed of {model}{on} is given as {given} tok/s{mixed}: these are two measurements, not one",
            arithmetic=work,
        )


def prompt_speed(claims: Sequence[Said], runs: Sequence[Figures]) -> Iterator[Finding]:
    """A prompt is read many tokens at a time: a speed of a few tokens a second is that of generating them."""
    slow = [said for said in claims if said[1].kind == "rate" and said[1].about[1] == "prompt" and 0 < said[1].values[0] < 20]
    if slow:
        value = slow[0][1].values[0]
        words = f"{number(value)} prompt tokens a second are what generating them takes: prompts are read in parallel, tens of times faster"
        yield Finding(
            rule="prompt and generation",
            sure="look",
            where=tuple(map(_place, slow[:4])),
            words=words,
            arithmetic=f"a prompt of 1,000 tokens would take {number(1000 / value)} s",
        )


@cache
def glossary() -> dict[str, list[str]]:
    return tomllib.loads(files("meshwise").joinpath("data/glossary.toml").read_text(encoding="utf-8"))


def meanings(claims: Sequence[Said], runs: Sequence[Figures]) -> Iterator[Finding]:
    """Abbreviations that a text spells out as something else."""
    seen: dict[str, list[Said]] = {}
    for said in claims:
        if said[1].kind == "meaning" and _wrong(said[1]):
            seen.setdefault(said[1].about[0], []).append(said)
    for short, group in seen.items():
        right = glossary()[short][0]
        words = f"{short.upper()} is {right}, not {group[0][1].about[1]}"
        yield Finding(
            rule="words",
            sure="sure",
            where=tuple(map(_place, group[:4])),
            words=words,
            arithmetic=f"said {len(group)} time{'s' * (len(group) > 1)}",
        )


def _wrong(claim: Claim) -> bool:
    short, long, *how = claim.about
    known = glossary().get(short)
    if known is None:
        return False
    squeezed = long.replace("-", " ").rstrip("s ")
    if any(meaning.replace("-", " ").rstrip("s") in squeezed or squeezed in meaning.replace("-", " ") for meaning in known):
        return False
    # 'GPUs are left out' says nothing of what a GPU is; 'Vrams are virtual memory' does: its last word is that of the right meaning.
    return not how or any(meaning.split()[-1] == squeezed.split()[-1] for meaning in known)


def efficiency(claims: Sequence[Said], runs: Sequence[Figures]) -> Iterator[Finding]:
    """'x% scaling efficiency' against the rates and devices of the same document, and whether those can be compared at all."""
    for source in dict.fromkeys(said[0] for said in claims if said[1].kind == "efficiency"):
        pair = _compared([f for f in runs if f.source == source])
        some = [said for said in claims if said[0] == source and said[1].kind == "efficiency"]
        if pair is None:
            yield Finding(
                rule="scaling",
                sure="look",
                where=tuple(map(_place, some[:2])),
                words=f"it claims '{some[0][1].text}' and gives no two rates to work it out from",
                arithmetic="no rates at two numbers of devices",
            )
            continue
        few, many = pair
        gain, more = many.stated_rate / few.stated_rate, many.devices / few.devices
        real = gain / more
        rates = f"{number(many.stated_rate)} / {number(few.stated_rate)} = {gain:.2f}"
        work = f"{rates} times the rate with {more:g} times the devices: {real:.1%}"
        for said in some:
            values = said[1].values
            claimed = values[0] / values[1] if len(values) == 2 and values[1] else values[0]
            if not near(claimed, real, 0.03):
                yield Finding(
                    rule="scaling",
                    sure="sure",
                    where=(_place(said),),
                    words=f"'{said[1].text}' is not: it is {real:.0%}",
                    arithmetic=work,
                )
        if not (math.isfinite(few.batch) and math.isfinite(many.batch)) or not (
            near(few.batch, many.batch, 0.05) or near(few.batch / few.devices, many.batch / many.devices, 0.05)
        ):
            said = (
                "does not state the batch of both"
                if not math.isfinite(few.batch)
                else f"compares batches of {number(few.batch)} and {number(many.batch)}"
            )
            yield Finding(
                rule="scaling",
                sure="look",
                where=(few.where, many.where),
                words=f"its scaling efficiency {said}: neither strong nor weak scaling",
                arithmetic=work,
            )


def _compared(runs: Sequence[Figures]) -> tuple[Figures, Figures] | None:
    """The runs with the fewest and with the most devices that state a rate."""
    rated = sorted(
        (f for f in runs if math.isfinite(f.stated_rate) and f.stated_rate > 0 and f.devices > 0), key=lambda f: f.devices
    )
    return (rated[0], rated[-1]) if rated and rated[-1].devices > rated[0].devices else None


def spreads(claims: Sequence[Said], runs: Sequence[Figures]) -> Iterator[Finding]:
    """'±6% across GPUs' against the rates of the ranks."""
    for said in claims:
        rates = next(
            (f.run.ranks["tokens_per_second"] for f in runs if f.source == said[0] and "tokens_per_second" in f.run.ranks), ()
        )
        if said[1].kind != "spread" or len(rates) < 2:
            continue
        mean = sum(rates) / len(rates)
        off = max(max(rates) / mean - 1, 1 - min(rates) / mean)
        if off > 1.2 * said[1].values[0]:
            yield Finding(
                rule="balance",
                sure="sure",
                where=(_place(said),),
                words=f"'{said[1].text}' is not: the ranks are up to {off:.1%} off their mean",
                arithmetic=f"{number(min(rates))} to {number(max(rates))}, mean {number(mean)}",
            )


RULES: tuple[Rule, ...] = (products, conflicts, rates_twice, prompt_speed, meanings, efficiency, spreads)
