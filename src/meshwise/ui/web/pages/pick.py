"""The page Pick: which open model to run on a machine, or which machine to buy or rent, for people without a model in mind."""

from typing import Any

from meshwise import api
from meshwise.plan.pick.answer import Pick
from meshwise.plan.pick.ask import PickAsk
from meshwise.plan.pick.machines import Machines
from meshwise.ui.views import pick as views
from meshwise.ui.web import asking
from meshwise.ui.web.asking import Pairs
from meshwise.ui.web.pages.page import Launch, Page, Reply, Site, examples_of

COMMANDS = 3  # models whose commands the page shows


def answer(site: Site, query: Pairs) -> Reply | None:
    ask = asking.question(PickAsk, query, site.named.models)
    found = site.kept.get(("pick", ask), lambda: api.pick(**{name: getattr(ask, name) for name in vars(ask)}))
    shown = values(found) if isinstance(found, Pick) else machine_values(found)
    return Reply(shown, found.to_json(), found.rows(), f"pick for {ask.purpose}")


def values(found: Pick) -> dict[str, Any]:
    """Return what the template shows of models on a machine."""
    listed = (*found.models, *found.unranked)
    tables = [("Models by published quality", views.table(found))] if found.models else []
    tables += [("Models without a published score for this use", views.table(found, ranked=False))] if found.unranked else []
    return {
        "header": [f"{found.machine}: what to run for {found.ask.purpose}", views.about(found.ask)], "tables": tables,
        "launches": [Launch(f"{one.model} in {one.format}", "\n".join(one.commands), one.engine) for one in listed[:COMMANDS]],
        "notes": views.notes(found, verbose=True), "command": found.command,
    }  # fmt: skip


def machine_values(found: Machines) -> dict[str, Any]:
    """Return what the template shows of machines within a price."""
    return {
        "header": [f"What to {'rent' if found.ask.rent else 'buy'} for {found.ask.purpose}", views.about(found.ask)],
        "tables": [("Machines, those with the best models first", views.machines_table(found))], "launches": [],
        "notes": [f"{one.on}: {one.source}, {one.date}" for one in found.machines], "command": found.command,
    }  # fmt: skip


def missing(query: Pairs) -> list[str]:
    """Return what a query lacks: the page does not look at the machine it runs on."""
    given = {name for name, value in query if value.strip()}
    return [] if given & {"on", "buy", "rent"} else ["devices (on), or dollars to buy or rent for"]


PAGE = Page(
    name="pick", title="Pick", about="Which open model to run on a machine", template="pick.html", answer=answer,
    form=lambda query: asking.groups(PickAsk, query), missing=missing,
    examples=examples_of("pick"),
)  # fmt: skip
