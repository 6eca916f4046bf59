"""The page Compare: two saved plans side by side, as `meshwise explain A B` prints them."""

from pathlib import Path

from meshwise import api
from meshwise.ui.views import diff as views
from meshwise.ui.web.asking import Pairs
from meshwise.ui.web.pages.page import Page, Reply, Site, Upload


def uploaded(site: Site, paths: list[Path], query: Pairs) -> Reply:
    """Compare two uploaded plans."""
    found = api.diff(paths[0], paths[1])
    return Reply({"found": found, "tables": views.tables(found)}, found.to_json(), found.rows(), " and ".join(found.names))


PAGE = Page(
    name="compare", title="Compare", about="How two saved plans differ: question, layout, figures, time and memory",
    template="diff.html", answer=lambda site, query: None,
    upload=Upload("Two saved plans", "Two plan.json files, as the button plan.json or --out writes", "Compare them", uploaded, files=2),
)  # fmt: skip
