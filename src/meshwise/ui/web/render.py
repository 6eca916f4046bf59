"""HTML from templates: one environment for pages and reports. A report has its styles and scripts inside; a page links to them."""

import json
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from meshwise.ui.web import drawing
from meshwise.version import VERSION

FOLDER = Path(__file__).parent
STATIC = FOLDER / "static"
MANUALS = (FOLDER / "site", FOLDER.parents[3] / "build" / "site")
"""Where the documentation lies, if it was built: in a wheel, or in a checkout after `make site`."""


@cache
def environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(FOLDER / "templates"), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True, auto_reload=False,
    )  # fmt: skip
    made.filters.update(data=data)  # pyright: ignore[reportUnknownMemberType]
    made.globals.update(version=VERSION, manual=manual() is not None)  # pyright: ignore[reportUnknownMemberType]
    return made


def manual() -> Path | None:
    """Return the folder of the documentation, if there is one."""
    return next((folder for folder in MANUALS if (folder / "index.html").is_file()), None)


def render(template: str, **values: Any) -> str:
    """Return a template filled in. Texts are escaped; a name without a value is an error."""
    return environment().get_template(template).render(**values)


def data(value: Any) -> Markup:
    """Return JSON for a <script type="application/json">: no text in it can close the element."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return Markup(text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"))


@cache
def asset(name: str) -> str:
    """Return the text of one of our styles or scripts, for a file that has everything inside."""
    return drawing.styles() if name == "parts.css" else (STATIC / name).read_text(encoding="utf-8")
