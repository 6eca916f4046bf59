"""The page Accuracy: predictions against measurements, for every table that comes with meshwise; residuals along an axis."""

from typing import Any

from meshwise import api
from meshwise.calibrate.result import Validation
from meshwise.errors import UserError, nearest, quoted
from meshwise.ui.web import asking
from meshwise.ui.web.asking import Pairs
from meshwise.ui.web.pages import audit, scores
from meshwise.ui.web.pages.page import Page, Reply, Site

OTHER_PARAMETERS = ("table", "axis")
FIRST_TABLE = "bloom_prequel"


def tables() -> list[str]:
    return api.names("measurements")


def validation_of(site: Site, query: Pairs) -> Validation:
    for name, _ in query:
        if name not in OTHER_PARAMETERS:
            raise UserError(f"there is no field {quoted(name)}{nearest(name, OTHER_PARAMETERS)}")
    table = asking.one(query, "table") or FIRST_TABLE
    if table not in tables():
        raise UserError(f"unknown table {quoted(table)}{nearest(table, tables())}")
    return site.kept.get(("validate", table), lambda: api.validate(table))


def answer(site: Site, query: Pairs) -> Reply | None:
    validation = validation_of(site, query)
    shown = scores.values(validation, asking.one(query, "axis"))
    links = {axis: asking.changed(query, axis=axis) for axis in shown["axes"]}
    values = {"tables": tables(), "score": shown, "links": links, "upload": audit.PAGE.upload}
    return Reply(values, validation.score, validation.rows(), validation.table)


def score(site: Site, query: Pairs) -> Reply:
    """Return the figures of one table, which the list of tables shows when they are ready; none for a table of mere notes."""
    try:
        validation = validation_of(site, query)
    except UserError as error:
        return Reply({"figures": {"error": str(error)}})
    figures: dict[str, Any] = {tile.name: tile.value for tile in scores.values(validation, "")["tiles"]}
    return Reply({"figures": figures}, validation.score)


PAGE = Page(name="accuracy", title="Accuracy", about="Predictions against measurements", template="accuracy.html", answer=answer)
