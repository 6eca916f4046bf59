"""The page Count: parameters, FLOPs, caches and bytes of models side by side, and the budget of training one on a cluster."""

from collections.abc import Sequence
from typing import Any, ClassVar

from meshwise import api
from meshwise.errors import UserError
from meshwise.models.count import Count
from meshwise.plan.fields import COUNT, LENGTH, SHARE, TEXT, Ask, asked, question
from meshwise.ui.views import count as views
from meshwise.ui.web import asking
from meshwise.ui.web.asking import Pairs
from meshwise.ui.web.pages.page import Page, Reply, Site, examples_of, missing_fields

MAX_MODELS = 6  # models side by side, at most


@question
class CountAsk(Ask):
    """A question to `meshwise count`: the parameters of `api.count`."""

    verb: ClassVar[str] = "count"

    model: str = asked(default="", converter=TEXT, kw_only=False)
    seq: int = asked(default=0, converter=LENGTH)
    tokens: float = asked(default="15T", converter=COUNT)
    on: str = asked(default="", converter=TEXT)
    batch: str = asked(default="", converter=TEXT)
    mfu: float = asked(default="40%", converter=SHARE)

    @property
    def models(self) -> list[str]:
        return [name.strip() for name in self.model.split(",") if name.strip()]


def ask_of(site: Site, query: Pairs) -> CountAsk:
    rest = [pair for pair in query if pair[0] != "model"]
    ask = asking.question(CountAsk, rest, site.named.models)
    given = CountAsk(model=asking.words(CountAsk, query).get("model", ""))
    if len(given.models) > MAX_MODELS:
        raise UserError(f"{len(given.models)} models: a page counts at most {MAX_MODELS} side by side")
    for name in given.models:
        asking.question(CountAsk, [("model", name)], site.named.models)
    return CountAsk(**(vars(ask) | {"model": given.model}))


def answer(site: Site, query: Pairs) -> Reply | None:
    ask = ask_of(site, query)
    if ask.batch and not ask.on:
        raise UserError("--batch needs --on: a cluster, such as tpu-v5p:16x20x28")
    counts = [
        api.count(name, seq=ask.seq or "", tokens=ask.tokens, on=ask.on, batch=ask.batch, mfu=ask.mfu) for name in ask.models
    ]
    return Reply(values(counts, ask), [each.to_json() for each in counts], [each.row() for each in counts], ", ".join(ask.models))


def values(counts: Sequence[Count], ask: CountAsk) -> dict[str, Any]:
    tallies = [count.to_json() for count in counts]
    budgets = [(tally["model"], views.budget_rows(tally["budget"])) for tally in tallies if "budget" in tally]
    notes = list(dict.fromkeys(note for tally in tallies for note in tally["notes"]))
    return {
        "names": [tally["model"] for tally in tallies], "sources": [tally["source"] for tally in tallies],
        "blocks": views.sections(tallies), "budgets": budgets, "on": ask.on,
        "rooflines": [line for tally in tallies for line in tally.get("budget", {}).get("rooflines", ())], "notes": notes,
        "command": ask.command(),
    }  # fmt: skip


PAGE = Page(
    name="count", title="Count", about="Parameters, FLOPs, caches and bytes of models", template="count.html", answer=answer,
    form=lambda query: asking.groups(CountAsk, query), missing=missing_fields({"model": "a model"}),
    examples=examples_of("count"),
)  # fmt: skip
