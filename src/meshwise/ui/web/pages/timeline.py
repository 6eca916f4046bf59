"""The page Timeline: the step of a layout, operation by operation, stage by stage; zoomed in the browser, or saved for Perfetto."""

from typing import Any

from markupsafe import Markup

from meshwise import units
from meshwise.cost.parts import TRAIN_TIME
from meshwise.plan.ask import TrainAsk
from meshwise.plan.train.timeline import PASSES, Timeline, after, as_file, trace
from meshwise.ui.views.svg.gantt import gantt
from meshwise.ui.web import asking
from meshwise.ui.web.asking import Pairs
from meshwise.ui.web.pages import choices, plan
from meshwise.ui.web.pages.page import Page, Reply, Site, Tile, missing_fields

OTHER_PARAMETERS = (*choices.OTHER_PARAMETERS, "row")
MAX_OPERATIONS_DRAWN = 50_000  # operations that a browser draws; of more, the picture shows the beginning and the end
SECONDS_DECIMALS = 6  # decimals of seconds: microseconds


def timeline_of(site: Site, query: Pairs) -> tuple[Timeline, Any, int]:
    made = plan.plan_of(site, [pair for pair in query if pair[0] not in OTHER_PARAMETERS])
    row = plan.row_of(query, made)
    timeline = site.kept.get(("timeline", made.ask, row), lambda: made.timeline(made.choices[row]))
    return timeline, made, row


def answer(site: Site, query: Pairs) -> Reply | None:
    timeline, made, row = timeline_of(site, query)
    choice, run = timeline.choice, timeline.run
    drawn = len(run.start) <= MAX_OPERATIONS_DRAWN
    values = {
        "header": [choice.name, f"{made.ask.model} on {made.ask.on}: row {row + 1} of {len(made.choices)}"],
        "choices": [(str(i + 1), each.name) for i, each in enumerate(made.choices)], "row": str(row + 1),
        "tiles": tiles(timeline), "operations": len(run.start), "drawing": drawing(timeline) if drawn else None,
        "picture": Markup(gantt(timeline, choice.name)), "trace": f"/timeline/trace?{asking.changed(query)}",
        "bars": [plan.time_bar(choice, choice.step, "time of a step by part")],
    }  # fmt: skip
    return Reply(values, trace(timeline), rows(timeline), f"Timeline: {choice.name}")


def tiles(timeline: Timeline) -> list[Tile]:
    choice = timeline.choice
    idle = 100 * choice.time["bubble"] / choice.step
    return [
        Tile("step", f"{choice.step:.4g} s"),
        Tile("schedule", timeline.schedule, f"{timeline.chunks} chunks per stage" if timeline.chunks > 1 else ""),
        Tile("stages", f"{timeline.stages}"),
        Tile("micro-batches", f"{timeline.microbatches}", "per data rank"),
        Tile("bubble", f"{idle:.1f}%", units.show(choice.time["bubble"], "seconds", digits=3)),
        Tile("after the pipeline", units.show(sum(timeline.after.values()), "seconds", digits=3), "gradients, optimizer"),
    ]


def rows(timeline: Timeline) -> list[dict[str, Any]]:
    """Return one row per operation."""
    run = timeline.run
    return [
        {"stage": stage, "pass": PASSES[kind], "chunk": chunk, "microbatch": microbatch, "start": start, "end": end}
        for (stage, kind, chunk, microbatch), start, end in zip(run.rows(), run.start.tolist(), run.end.tolist(), strict=True)
    ]


def drawing(timeline: Timeline) -> dict[str, Any]:
    """Return the operations as arrays, which take a third of the bytes of rows."""
    run, colours = timeline.run, {part.name: part for part in TRAIN_TIME}
    each = list(run.rows())
    return {
        "stages": timeline.stages, "chunks": timeline.chunks, "step": timeline.choice.step, "passes": PASSES,
        "stage": [row[0] for row in each], "kind": [row[1] for row in each], "chunk": [row[2] for row in each],
        "microbatch": [row[3] for row in each], "start": [round(value, SECONDS_DECIMALS) for value in run.start.tolist()],
        "end": [round(value, SECONDS_DECIMALS) for value in run.end.tolist()],
        "after": [
            {"part": part, "words": colours[part].words, "colour": colours[part].colour, "start": start, "end": end}
            for part, start, end in after(timeline)
        ],
    }  # fmt: skip


def saved(site: Site, query: Pairs) -> bytes:
    """Return the trace for ui.perfetto.dev, compressed."""
    timeline, _, _ = timeline_of(site, query)
    return as_file(trace(timeline), "step.json.gz")


PAGE = Page(
    name="timeline", title="Timeline", about="The step of a layout, operation by operation", template="timeline.html",
    answer=answer, form=lambda query: asking.groups(TrainAsk, query), missing=missing_fields(plan.REQUIRED_FIELDS),
    examples=plan.EXAMPLES,
)  # fmt: skip
