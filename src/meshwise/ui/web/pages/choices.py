"""Functions that the pages Plan and Serve share: the plan that a query asks for, the table of its layouts, and its launch files."""

from collections.abc import Callable
from typing import Any, TypeVar

from meshwise import api
from meshwise.errors import UserError
from meshwise.plan.fields import Ask
from meshwise.plan.plan import Plan
from meshwise.plan.serve.plan import ServePlan
from meshwise.plan.train.plan import TrainPlan
from meshwise.ui.views.tables import Table
from meshwise.ui.web import asking, drawing
from meshwise.ui.web.asking import Pairs
from meshwise.ui.web.compare import toggled
from meshwise.ui.web.drawing import Bar, Layouts, Row
from meshwise.ui.web.pages.page import Launch, Reply, Site

Made = TypeVar("Made", bound=Plan[Any, Any])
Chosen = TypeVar("Chosen")
OTHER_PARAMETERS = ("a", "b", "sort")
"""Parameters of both pages beside the fields of the question: two rows to compare, and the order of the table."""


def plan_of(site: Site, query: Pairs, ask: type[Ask], made: type[Made], plan: Callable[..., Made]) -> Made:
    """Return the plan that a query asks for: the one named on the command line where it asks that question, or a new one."""
    asked, saved = asking.question(ask, query, site.named.models, OTHER_PARAMETERS), site.named.plan
    if isinstance(saved, made) and saved.ask == asked:
        return saved
    return site.kept.get((ask.verb, asked), lambda: plan(**vars(asked)))


def believe(site: Site, plan: TrainPlan | ServePlan) -> Reply:
    """Return what the figures of a plan rest on, which a page asks for after its answer."""
    lines = site.kept.get(("believe", plan.ask), plan.believe)
    return Reply({"reasons": lines}, lines, [{"line": line} for line in lines])


def table(
    shown: Table[Chosen], query: Pairs, interval: Callable[[Chosen], tuple[float, float, float]],
    bar: Callable[[Chosen], Bar], warning: Callable[[Chosen], str] = lambda choice: "",
) -> Layouts:  # fmt: skip
    """Return the table of layouts in the asked order, with a bar and an interval (low, value, high) in each row."""
    order, intervals = asking.one(query, "sort"), drawing.whiskers([interval(choice) for choice in shown.rows])
    rows: list[Row] = []
    for i in drawing.ordered(shown, order):
        choice, (mark, link) = shown.rows[i], toggled(query, i)
        cells = tuple(drawing.cell(column, choice) for column in shown.columns)
        rows.append(Row(i + 1, cells, mark, warning(choice), bar(choice), intervals[i], link))
    return Layouts(drawing.heads(shown.columns, order), tuple(rows))


def links(query: Pairs, shown: Layouts) -> dict[str, Any]:
    """Return the query strings of a click on each head of the table, and on the button that ends a comparison."""
    return {
        "sorts": [asking.changed(query, sort=head.slug) for head in shown.heads],
        "uncompared": asking.changed(query, a="", b=""),
    }


def launch_files(plan: TrainPlan | ServePlan, program: str, launcher: str) -> list[Launch]:
    """Return the files that start the best row by a program and a launcher; the reason where the program cannot say its layout."""
    try:
        exported = api.export(plan, to=program, launcher=launcher)
    except UserError as error:
        return [Launch(program, str(error), "not every layout can be written for this program")]
    how = " with ".join(filter(None, (f"{exported.program} {exported.version}".strip(), launcher)))
    about = [f"{how}: {exported.start}", *[f"one of the files for {how}"] * (len(exported.files) - 1)]
    return [Launch(name, text, words, file=name) for (name, text), words in zip(exported.files.items(), about, strict=True)]
