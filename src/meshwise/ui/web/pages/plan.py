"""The page Plan: a form of TrainAsk, the table of layouts, bars of time and memory, a comparison of two rows, and how to start one."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from meshwise import api, units
from meshwise.errors import UserError
from meshwise.plan.ask import TrainAsk
from meshwise.plan.train.choice import Choice
from meshwise.plan.train.plan import TrainPlan
from meshwise.programs.program import programs
from meshwise.ui.views import plan as views
from meshwise.ui.web import asking, drawing
from meshwise.ui.web.asking import Pairs
from meshwise.ui.web.compare import Comparison, compare_trained, selected
from meshwise.ui.web.pages import choices
from meshwise.ui.web.pages.page import Badge, Launch, Page, Reply, Site, Tile, calibrated, dropped, examples_of, missing_fields
from meshwise.units import GIB, figure

REQUIRED_FIELDS = {"model": "a model", "on": "a cluster (on)", "batch": "a global batch"}
EXAMPLES = examples_of("plan")


PROGRAMS = {"fsdp": "accelerate", "ddp": "accelerate"}  # programs that write the launch files of frameworks of another name
TUNERS = {"trl": "trainer", "accelerate": "trainer", "fsdp": "trainer", "ddp": "trainer", "deepspeed": "trainer"}
"""The same for plans with adapters."""


def plan_of(site: Site, query: Pairs) -> TrainPlan:
    return choices.plan_of(site, query, TrainAsk, TrainPlan, api.plan)


def answer(site: Site, query: Pairs) -> Reply | None:
    plan = plan_of(site, query)
    return Reply(values(plan, query), plan.to_json(), plan.rows(), f"{plan.ask.model} on {plan.ask.on}")


def values(plan: TrainPlan, query: Pairs) -> dict[str, Any]:
    """Return what the template of an answer shows."""
    chosen, shown_table = selected(query, len(plan.choices)), table(plan, query)
    first, _ = chosen or (0, 0)
    shown = plan.choices[first]
    memory = memory_bar(shown, "memory of the fullest device", plan.cluster["kind"])
    row = asking.changed(query, a="", b="", sort="", row=str(first + 1))
    return {
        "header": views.header(plan), "badges": badges(plan), "tiles": tiles(plan, shown), "tiles_of": shown.name,
        "bars": [time_bar(shown, shown.step, "time of a step"), memory], "table": shown_table,
        "moments": moment_bars(shown, plan.cluster["kind"]),
        **choices.links(query, shown_table), "picture": "time of a step by part", "footnotes": views.below_table(plan),
        "comparison": compared(plan, chosen) if chosen else None,
        "dropped_title": f"{plan.evaluated:,} layouts evaluated; dropped before, by rule",
        "dropped": dropped({rule: float(count) for rule, count in plan.rejected.items()}, lambda n: f"{n:,.0f}"),
        "launches": launches(plan), "drawing": "", "drawing_title": "The step in time", "notes": plan.notes,
        "command": plan.command,
        "links": {
            "mesh": f"/mesh?{row}",
            "timeline": f"/timeline?{row}",
            "what-if": f"/what-if?{asking.changed(query, a='', b='', sort='')}",
        },
        "why": f"/plan/why?{asking.changed(query, sort='', a='', b='')}", "reasons": (),
        "believe": f"/plan/believe?{asking.changed(query, sort='', a='', b='')}",
    }  # fmt: skip


def why(site: Site, query: Pairs) -> Reply:
    """Return why the best layout won and what would change that. It takes several searches, so a page asks for it after its answer."""
    plan = plan_of(site, query)
    explained = site.kept.get(("why", plan.ask), lambda: api.explain(plan))
    rows: list[Mapping[str, Any]] = [{"reason": line} for line in explained.reasons]
    return Reply({"reasons": explained.reasons}, explained.to_json(), rows)


def believe(site: Site, query: Pairs) -> Reply:
    return choices.believe(site, plan_of(site, query))


def badges(plan: TrainPlan) -> list[Badge]:
    best = plan.best
    shown = [calibrated(plan.calibration, plan.cluster["chip"])]
    if best.may_not_fit:
        shown.append(Badge("warn", "may not fit", "The upper end of the best layout's 90% memory interval exceeds the device."))
    else:
        shown.append(Badge("good", "fits", "The whole 90% memory interval of the best layout is below the device's memory."))
    if not plan.ask.framework:
        shown.append(Badge("note", f"{plan.framework} assumed", "No framework was given: this is the usual one for the chip."))
    return shown


def tiles(plan: TrainPlan, c: Choice) -> list[Tile]:
    """Return the figures of one layout."""
    shown = [
        Tile("step", f"{figure(c.step, 4)} s", f"90%: {figure(c.low)} to {figure(c.high)}"),
        Tile("throughput", f"{c.tokens_per_second:,.0f}", "tokens/s"),
        Tile("MFU", f"{100 * c.mfu:.1f}%", f"{c.tflops['exact']:.0f} TFLOP/s per device"),
        Tile("memory", f"{c.peak / GIB:.1f} GiB", f"of {c.capacity / GIB:.0f}, 90% below {c.peak_high / GIB:.0f}"),
    ]
    if c.total_days is not None:
        titles = {"cost": "cost", **dict.fromkeys(dict(views.TIMES), "training"), **dict.fromkeys(dict(views.ENERGIES), "energy")}
        for column in views.total_columns(plan.best):
            unit = "" if column.title == "cost" else f" {column.title}"
            interval = column.cell(c).partition("(")[2].rstrip(")").replace("-", " to ")
            shown.append(Tile(titles[column.title], f"{(column.short or column.cell)(c)}{unit}", f"90%: {interval}"))
    return shown


def time_bar(c: Choice, full: float, label: str) -> drawing.Bar:
    return drawing.bar("tt", c.time, full, lambda value: units.show(value, "seconds", digits=3), label, f"{figure(c.step, 4)} s")


def memory_bar(c: Choice, label: str, kind: object) -> drawing.Bar:
    return _bytes_bar(c, c.memory, label, f"{c.peak / GIB:.1f} of {c.capacity / GIB:.0f} GiB", kind)


def moment_bars(c: Choice, kind: object) -> list[drawing.Bar]:
    """Return a bar of the memory at each moment of a step, with the peak named."""
    labels = {name: f"{words}{', the peak' * (name == c.peak_moment)}" for name, words in views.MOMENT_WORDS.items()}
    totals = {name: f"{sum(sizes.values()) / GIB:.2f} GiB" for name, sizes in c.moments.items()}
    return [_bytes_bar(c, sizes, labels[name], totals[name], kind) for name, sizes in c.moments.items()]


def _bytes_bar(c: Choice, sizes: dict[str, float], label: str, total: str, kind: object) -> drawing.Bar:
    return drawing.bar("tm", sizes, c.capacity, lambda value: f"{value / GIB:.2f} GiB", label, total, kind)


def table(plan: TrainPlan, query: Pairs) -> drawing.Layouts:
    slowest = max(c.step for c in plan.choices)
    return choices.table(
        views.table(plan), query, lambda c: (c.low, c.step, c.high), lambda c: time_bar(c, slowest, c.name),
        lambda c: "may not fit: the 90% memory interval exceeds the device" if c.may_not_fit else "",
    )  # fmt: skip


def compared(plan: TrainPlan, rows: tuple[int, int]) -> Comparison:
    return compare_trained(plan.choices[rows[0]], plan.choices[rows[1]])


def launches(plan: TrainPlan) -> list[Launch]:
    """Return how to start the best layout: the files of its framework, and meshwise's own commands."""
    question = plan.question()
    framework = question.work.framework
    own_file = framework.program if question.work.finetune.adapts else framework.key
    program = (TUNERS if question.work.finetune.adapts else PROGRAMS).get(own_file, own_file)
    known = program in programs() and program != "meshwise"
    files = choices.launch_files(plan, program, "slurm" if question.cluster.node_count > 1 else "") if known else []
    own = f"{plan.command} --out plan.json\nmeshwise run plan.json --dry-run\nmeshwise run plan.json"
    return [*files, Launch("meshwise", own, "write the plan, look at what would run, train")]


def row_of(query: Pairs, plan: TrainPlan) -> int:
    """Return the row that a query asks for, from 0."""
    number = asking.number(query, "row", 1, 1000)
    if number is not None and number > len(plan.choices):
        raise UserError(f"row {number}: the table has {len(plan.choices)} rows")
    return (number or 1) - 1


PAGE = Page(
    name="plan", title="Plan", about="The fastest layouts to train a model on a cluster", template="answer.html",
    answer=answer, form=lambda query: asking.groups(TrainAsk, query), missing=missing_fields(REQUIRED_FIELDS), examples=EXAMPLES,
    planned=plan_of,
)  # fmt: skip


TUNED = {"finetune": "lora:16", "batch": "8"}
"""What a question about fine-tuning leaves out most often: a usual adapter, and the batch of published recipes on one card. A choice."""
TUNED_FIRST = ("model", "on", "finetune", "base", "objective", "tokens", "batch", "seq")
"""Inputs that come first on the page Fine-tune."""


def tuned(query: Pairs) -> Pairs:
    """Return a query with a method of fine-tuning and a batch."""
    given = {name for name, value in query if value.strip()}
    return [*query, *((name, value) for name, value in TUNED.items() if name not in given)]


def tuning_form(query: Pairs) -> list[asking.Group]:
    """Return the form of a plan with the method of fine-tuning among its first inputs."""
    groups = asking.groups(TrainAsk, query, examples=TUNED)
    by_name = {one.name: one for group in groups for one in group.inputs}
    left = [replace(group, inputs=tuple(one for one in group.inputs if one.name not in TUNED_FIRST)) for group in groups]
    first = asking.Group("", tuple(by_name[name] for name in TUNED_FIRST))
    return [first, *(replace(group, title=group.title or "More") for group in left if group.inputs)]


TUNING_PAGE = Page(
    name="finetune", title="Fine-tune", about="Fine-tune a model on your cards: what fits, how long it takes, what it costs",
    template="answer.html", answer=lambda site, query: answer(site, tuned(query)), form=tuning_form,
    missing=missing_fields({"model": "a model", "on": "the devices (on)"}), planned=lambda site, query: plan_of(site, tuned(query)),
    examples=examples_of("finetune"),
)  # fmt: skip
