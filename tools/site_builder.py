"""Build the documentation site: pages of docs and those at the root, an API reference from docstrings, and checks of every link.

Nothing is fetched from the net, at build or when it is read: no fonts, no CDN. Scripts that the theme writes into pages become files, so
that the site works under the strict policy of `meshwise ui`, which shows it at /docs.
"""

import hashlib
import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urldefrag

ROOT = Path(__file__).parent.parent
PAGES = ROOT / "build" / "site-pages"
SITE = ROOT / "build" / "site"
AT_ROOT = ("CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md", "benchmarks/README.md", "src/meshwise/data/measurements/README.md")
STYLE = """/* wide tables and console output scroll by themselves; cells do not break within a name */
.md-typeset table:not([class]) td:first-child { white-space: nowrap; }
.md-typeset pre > code { font-size: .72em; }
.md-grid { max-width: 72rem; }
/* what axe-core asks for: links that do not differ by colour alone, tabs that can be read */
.md-typeset a:not(.headerlink):not(.md-button) { text-decoration: underline; }
.md-tabs__link { opacity: 1; }
.md-copyright, .md-copyright__highlight, .md-footer-meta.md-typeset a { color: var(--md-footer-fg-color); }
/* as long as the theme's own rule, which would make every cell start at the left */
.md-typeset table:not([class]) :is(td, th).cell-right { text-align: right; }
.md-typeset table:not([class]) :is(td, th).cell-center { text-align: center; }
"""
SCRIPT = """// the theme wraps tables into boxes that scroll: keys must reach them
const reach = () => document.querySelectorAll(".md-typeset__scrollwrap").forEach((box) => { box.tabIndex = 0; });
new MutationObserver(reach).observe(document.body, { childList: true, subtree: true });
reach();
"""
LINK = re.compile(r"(\]\()([^)\s]+)(\))")
INLINE = re.compile(r"<script>(.*?)</script>", re.DOTALL)
OWN_STYLE = re.compile(r"<style>(.*?)</style>", re.DOTALL)


def prepare() -> None:
    """Copy the pages, with links that stay on the site, into a folder for the generator."""
    shutil.rmtree(PAGES, ignore_errors=True)
    shutil.copytree(ROOT / "docs", PAGES)
    for name in AT_ROOT:
        target = PAGES / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, target)
    (PAGES / "assets").mkdir(exist_ok=True)
    (PAGES / "assets" / "meshwise.css").write_text(STYLE, encoding="utf-8")
    (PAGES / "assets" / "meshwise.js").write_text(SCRIPT, encoding="utf-8")
    shutil.copy(ROOT / "tools" / "vendor" / "iframe-worker.js", PAGES / "assets")
    schemas = PAGES / "schemas"
    shutil.copytree(ROOT / "src/meshwise/data/schemas", schemas)
    texts = "\n".join(page.read_text(encoding="utf-8") for page in PAGES.rglob("*.md"))
    for picture in (PAGES / "pictures").rglob("*.*"):
        if picture.name not in texts:  # other widths and themes, which no page shows
            picture.unlink()
    for page in PAGES.rglob("*.md"):
        page.write_text(relinked(page), encoding="utf-8")
    (PAGES / "reference.md").write_text("\n".join(reference()), encoding="utf-8")


def relinked(page: Path) -> str:
    """Return a page whose links to files of the repository that are not on the site are plain text."""
    name = page.relative_to(PAGES)
    origin = ROOT / name if str(name) in AT_ROOT else ROOT / "docs" / name
    text = re.sub(r"<!-- \[\[\[(cog.*?\]\]\]|end\]\]\]) -->\n*", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)

    def moved(match: re.Match[str]) -> str:
        path, anchor = urldefrag(match[2])
        if "://" in path or not path or path.startswith("mailto:"):
            return match[0]
        target = (origin.parent / path).resolve()
        inside = target.relative_to(ROOT / "docs") if target.is_relative_to(ROOT / "docs") else target.relative_to(ROOT)
        if target.name == "README.md" and target.parent == ROOT:
            inside = Path("start.md")
        if not (PAGES / inside).exists():
            return f"{match[1]}start.md{match[3]}" if target.is_dir() else match[0].replace(match[2], "#")
        up = Path(*[".."] * (len(name.parts) - 1)) / inside
        return f"{match[1]}{up.as_posix()}{'#' + anchor if anchor else ''}{match[3]}"

    parts = re.split(r"(^```.*?^```)", text, flags=re.DOTALL | re.MULTILINE)
    return "".join(part if part.startswith("```") else LINK.sub(moved, part) for part in parts)


def reference() -> Iterator[str]:
    """Yield a page of every public name of `meshwise`: its signature, docstring and keywords."""
    import meshwise

    yield from (
        "# The API, name by name",
        "",
        "From the docstrings of `import meshwise as mw`. [In Python](use/api.md) is the tour.",
        "",
    )
    for name in meshwise.__all__:
        value = getattr(meshwise, name)
        yield from (f"## mw.{name}", "")
        about, _, keywords = inspect.cleandoc(value.__doc__ or "").partition("\n\n")
        if not inspect.isclass(value):
            signature = re.sub(r"\b(?:meshwise|collections\.abc|pathlib)\.", "", str(inspect.signature(value)))
            signature = re.sub(r"(: |-> )'([^']+)'", r"\1\2", re.sub(r"<built-in function (\w+)>", r"\1", signature))
            shown = signature if len(signature) < 200 else "(model, *, ...)"
            yield from ("```python", f"mw.{name}{shown}", "```", "")
        yield from (" ".join(about.split()), "")
        for line in keywords.splitlines():
            word, colon, help = line.strip().partition(": ")
            yield f"- `{word}`: {help}" if colon and word.isidentifier() else line.strip()
        yield ""


def externalise() -> None:
    """Move scripts and styles that stand in pages into files."""
    folder = SITE / "assets" / "inline"
    folder.mkdir(parents=True, exist_ok=True)
    for page in SITE.rglob("*.html"):
        up = "../" * (len(page.relative_to(SITE).parts) - 1)

        def kept(text: str, suffix: str, up: str = up) -> str:
            name = f"{hashlib.sha256(text.encode()).hexdigest()[:12]}.{suffix}"
            (folder / name).write_text(text, encoding="utf-8")
            return f"{up}assets/inline/{name}"

        html = page.read_text(encoding="utf-8")
        html = INLINE.sub(lambda match: f'<script src="{kept(match[1], "js")}"></script>', html)
        html = OWN_STYLE.sub(lambda match: f'<link rel="stylesheet" href="{kept(match[1], "css")}">', html)
        html = html.replace(
            'data-md-component="search" role="dialog"', 'data-md-component="search" role="dialog" aria-label="Search"'
        )
        html = re.sub(r'style="text-align: (left|right|center);"', r'class="cell-\1"', html)
        page.write_text(html, encoding="utf-8")


def slim_search() -> None:
    """Leave the output of commands out of the search: half of its index was numbers. The commands themselves are found."""

    def commands(match: re.Match[str]) -> str:
        lines = [line for line in match[2].splitlines() if line.startswith("$ ")]
        return "\n".join((match[1], *lines, match[3])) if lines else match[0]

    index = SITE / "search" / "search_index.json"
    found = json.loads(index.read_text(encoding="utf-8"))
    for entry in found["docs"]:
        entry["text"] = re.sub(r"(<pre><code[^>]*>)(.*?)(</code></pre>)", commands, entry["text"], flags=re.DOTALL)
    text = json.dumps(found, ensure_ascii=False, separators=(",", ":"))
    index.write_text(text, encoding="utf-8")
    index.with_suffix(".js").write_text(f"var __index = {text}", encoding="utf-8")


class Page(HTMLParser):
    """The links and anchors of a page, and what it would fetch from elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if given.get("id"):
            self.anchors.add(str(given["id"]))
        if tag == "a" and given.get("href"):
            self.links.append(str(given["href"]))
        loaded = given.get("src") or (
            given.get("href") if tag == "link" and given.get("rel") not in ("canonical", "prev", "next") else None
        )
        if loaded:
            (self.fetched if "://" in loaded or loaded.startswith("//") else self.links).append(loaded)


def faults() -> Iterator[str]:
    """Yield every link that leads nowhere, every page that cannot be reached, and whatever would be fetched from elsewhere."""
    pages: dict[Path, Page] = {}
    for path in SITE.rglob("*.html"):
        pages[path.resolve()] = page = Page()
        page.feed(path.read_text(encoding="utf-8"))
    reached = {(SITE / "index.html").resolve()}
    for path, page in pages.items():
        name = path.relative_to(SITE.resolve())
        yield from (f"{name} fetches {link}" for link in page.fetched)
        back = False
        for link in page.links:
            target, anchor = urldefrag(link)
            if "://" in target or target.startswith(("mailto:", "data:")):
                continue
            file = (path.parent / unquote(target)).resolve() if target else path
            file = file / "index.html" if file.is_dir() else file
            if not file.exists():
                yield f"{name} links to {link}"
            elif anchor and file in pages and unquote(anchor) not in pages[file].anchors:
                yield f"{name} links to {link}, which has no such heading"
            reached.add(file)
            back = back or file == (SITE / "index.html").resolve()
        if not back:
            yield f"{name} has no way back"
    yield from (f"{path.relative_to(SITE.resolve())} cannot be reached" for path in pages if path not in reached)


def main() -> None:
    prepare()
    mkdocs = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--clean"]
    done = subprocess.run(
        mkdocs, cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT / "tools"), "NO_MKDOCS_2_WARNING": "1"}, check=False
    )
    if done.returncode:
        raise SystemExit(done.returncode)
    (SITE / "404.html").unlink()  # its links are those of a site at the root of a host
    for unused in (*SITE.rglob("*.map"), SITE / "sitemap.xml", SITE / "sitemap.xml.gz"):
        unused.unlink(missing_ok=True)
    shutil.rmtree(SITE / "assets" / "javascripts" / "lunr")  # languages other than English
    slim_search()
    externalise()
    found = list(faults())
    print(*found, sep="\n")
    size = sum(path.stat().st_size for path in SITE.rglob("*") if path.is_file())
    print(f"{SITE.relative_to(ROOT)}: {len(list(SITE.rglob('*.html')))} pages, {size / 1e6:.1f} MB, {len(found)} faults")
    if found:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
