"""Markdown: tables of runs, log lines in code blocks, 'key: value' lines, and headings and 'NHIDDEN=14336' lines above tables."""

import re
from collections.abc import Iterable

from meshwise.programs.logs import document, prose
from meshwise.programs.logs.lines import Line
from meshwise.runs.numbers import parse_range
from meshwise.runs.reading import MEASURED_FIELDS, Reading, run_of
from meshwise.runs.run import Run
from meshwise.runs.table import Header, decimal_mark, read_cell

name = "markdown"
order = 40
MAX_ROWS = 5_000  # rows of a table held in memory; a longer one is read in pieces
RANK_FIGURES = {
    "tokens_per_second": "tokens_per_second", "tokens_per_second_per_device": "tokens_per_second", "first_loss": "loss",
    "memory": "memory",
}  # fmt: skip
"""Figures of single ranks, by the field of their column."""
_RULE = re.compile(r"^[|\s:+-]*-[|\s:+-]*$")
_BOLD = re.compile(r"\*\*([^*]+)\*\*|__([^_]+)__")


def matches(head: str) -> bool:
    return bool(re.search(r"^\s*\|?.*\|.*\n\s*\|?\s*:?-+:?\s*\||^#{1,6} \S", head, re.MULTILINE))


def bare(text: str) -> str:
    """Remove markup that only changes how the text looks: bold, code marks, quotes and emoji."""
    text = _BOLD.sub(lambda m: m[1] or m[2], text.replace("`", ""))
    return re.sub(r"^[\s>]*", "", re.sub(r"[\U0001F000-\U0001FAFF\u2600-\u27BF\uFE0F]", "", text)).rstrip()


class Table:
    """The rows of a table while it is read."""

    def __init__(self) -> None:
        self.header: list[str] = []
        self.rows: list[tuple[int, list[str]]] = []
        self.ruled = False

    def add(self, line: Line, cells: list[str]) -> None:
        if not self.header:
            self.header = cells
        elif not self.ruled and _RULE.match(line.text):
            self.ruled = True
        elif any(cells):
            self.rows.append((line.number, cells))


def read(lines: Iterable[Line]) -> Reading:
    reading = Reading(name)
    page = document.Page(reading)
    table, fenced = Table(), False
    held: Line | None = None  # may be the header of a table without bars at its edges
    for line in lines:
        text = line.text.strip()
        if text.startswith(("```", "~~~")):
            fenced = not fenced
        if held is not None and "|" in text and _RULE.match(text):
            table = Table()
            table.add(held, _cells(held.text))
        elif held is not None:
            _read_line(reading, page, held, bare(held.text[: prose.MAX_PARAGRAPH_CHARS]), fenced=False)
        held = None
        in_table = not fenced and (text.startswith("|") or ("|" in text and bool(table.header)))
        if not in_table or len(table.rows) >= MAX_ROWS:
            _add_table(reading, page, table)
            table = Table()
        if in_table:
            table.add(line, _cells(text))
        elif "|" in text and not fenced and "iteration" not in text:
            held = line
        else:
            _read_line(reading, page, line, bare(line.text[: prose.MAX_PARAGRAPH_CHARS]), fenced)
    if held is not None:
        _read_line(reading, page, held, bare(held.text[: prose.MAX_PARAGRAPH_CHARS]), fenced=False)
    _add_table(reading, page, table)
    page.close()
    return reading


def _cells(text: str) -> list[str]:
    return [bare(cell).strip() for cell in text.strip().strip("|").split("|")]


def _read_line(reading: Reading, page: document.Page, line: Line, text: str, fenced: bool) -> None:
    where = f"line {line.number}"
    heading = None if fenced else re.match(r"^(#{1,6})\s+(.*)", text)
    step = _step_of(text)
    if heading:
        page.add_heading(len(heading[1]), heading[2])
        text = heading[2]
    elif step is not None:
        number, numbers = step
        loss = {"first_loss": numbers.pop("loss")} if "loss" in numbers else {}
        told = {**numbers, **loss, "loss_step": float(number), "framework": "Megatron-DeepSpeed"}
        page.add_log_line(Run.told(where, told, section=page.section))
        return
    else:
        page.read_line(text, where)
    if page.measured:
        page.model = prose.model_in(text) or page.model
        for claim in prose.claims(text, where, page.model):
            reading.add_claim(claim)


def _step_of(text: str) -> tuple[int, dict[str, float]] | None:
    """Return the step that a quoted line of a Megatron log states; None for other lines."""
    if "iteration" not in text or "|" not in text:
        return None
    from meshwise.programs.logs.formats import megatron

    return megatron.step_of(text)


def _add_table(reading: Reading, page: document.Page, table: Table) -> None:
    """Add the runs of a complete table; ignore a table that measures nothing."""
    if not table.rows or not table.ruled:
        return
    header = Header(table.header)
    if not header.fields & set(MEASURED_FIELDS) or len(header.fields) < 2:
        _add_columns(reading, page, table)
        return
    if _read_ranks(page, table):
        return
    decimal = decimal_mark([cell for _, cells in table.rows for cell in header.number_cells(cells)])
    section = f"{page.section} #{table.rows[0][0]}"
    for number, cells in table.rows:
        where = f"line {number}"
        if len(cells) != len(table.header):
            reading.skipped.add("a row with more or fewer cells than its header", where)
            continue
        run = run_of(header, cells, where, decimal, reading.skipped)
        if run is None:
            reading.skipped.add("a row without a measurement", where)
        else:
            page.add_row(run, section)


def _read_ranks(page: document.Page, table: Table) -> bool:
    """Read a table with one rank per row into the ranks of the page's run. Returns whether it was one."""
    ranks = [re.fullmatch(r"(?:gpu|rank|device|cuda:?)?\s*(\d{1,4})", cells[0], re.IGNORECASE) for _, cells in table.rows]
    if table.header[0].lower() not in ("gpu", "rank", "device") or len(ranks) < 2 or not all(ranks) or not page.measured:
        return False
    for number, column in list(enumerate(Header(table.header).columns))[1:]:
        name = RANK_FIGURES.get(column.field.name, "") if column else ""
        if column is None or not name:
            continue
        for rank, (_, cells) in zip(ranks, table.rows, strict=True):
            value = read_cell(column, cells[number], "") if number < len(cells) else None
            if rank and value:
                page.ranks.setdefault(name, {})[int(rank[1])] = value.value
    return True


def _add_columns(reading: Reading, page: document.Page, table: Table) -> None:
    """Add the runs of a transposed table, with one metric per row and one run per column."""
    names = [cells[0] for _, cells in table.rows]
    header = Header(names)
    known = sum(column is not None for column in header.columns)
    if not header.fields & set(MEASURED_FIELDS) or known < 2 or not page.measured:
        return
    section = f"{page.section} #{table.rows[0][0]}"
    for column in range(1, len(table.header)):
        cells = [row[column] if column < len(row) else "" for _, row in table.rows]
        single = ["" if parse_range(cell) else cell.replace("/GPU", "").replace("/gpu", "") for cell in cells]
        run = run_of(header, single, f"line {table.rows[0][0]}, {table.header[column]!r}", "", reading.skipped)
        if run is not None:
            page.add_column(run, table.header[column], section)
