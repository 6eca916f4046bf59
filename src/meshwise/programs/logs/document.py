"""Facts that a document states outside its tables, and the runs that they apply to."""

import math
import re
from dataclasses import replace

from meshwise.runs.fields import find_column
from meshwise.runs.numbers import amount, parse_range
from meshwise.runs.reading import Claim, Reading
from meshwise.runs.run import Run, Value

SHAPE = frozenset({"layers", "hidden", "heads", "ffn", "kv_heads"})
FIELDS_ABOVE_A_TABLE = SHAPE | {"batch", "seq", "vocab"}
"""Fields that a line above a table sets for its rows. A layout is only taken from the row itself."""
DOCUMENT_FIELDS = frozenset({"seq", "vocab", "devices_per_node"})
"""Fields that hold for a whole document if it states a single value."""
MEASURED_FIELDS = frozenset({
    "seconds", "tokens_per_second", "tokens_per_second_per_device", "samples_per_second", "mfu", "tflops", "memory", "peak",
    "first_loss", "reserved", "allocated",
})  # fmt: skip
_PAIR = re.compile(r"\b([A-Za-z_]{2,})\s*=\s*(\d[\d.,]*[kKMB]?)(?!\s*[*%^]|/|\w)")
_SIZED = re.compile(r"\b(\d+(?:\.\d+)?[MB]) model\b")
_BULLET = re.compile(r"^\s*(?:[-*+•]|\d+[.)])?\s*([A-Za-z0-9][\w /&().'-]{0,48}?)\s*:\s+(\S.*)$")
_RANK = re.compile(r"^(?:GPU|rank|cuda|device)[ :#]*(\d{1,4})$", re.IGNORECASE)
_COMPARED = re.compile(r"^(\d{1,5})[- ]GPUs?\b", re.IGNORECASE)
_CHIP = re.compile(
    r"\b(?:(\d{1,5})\s*[x×]\s*)?((?:NVIDIA |GeForce |Tesla )*(?:RTX ?)?"
    r"(?:[ABHV]100|H200|H800|A800|B200|B300|GH200|GB200|L40S?|L4|T4|A10G?|A30|A40|MI\d{3}X?|[3-5]0[6-9]0(?: ?Ti)?)"
    r"(?:[ -](?:SXM\d?|PCIe|NVL))?(?:[ -]\d+ ?GB)?)\b",
    re.IGNORECASE,
)
_PER_NODE = re.compile(r"\bnodes? (?:of|with) (\d{1,3}) gpus?\b|\b(\d{1,3})[ -]gpus? (?:per|a) node\b", re.IGNORECASE)
_NODES = re.compile(r"^\s*[-*]?\s*(\d{1,5}) nodes?(?:,\s*(\d{1,4}) replicas?)?", re.IGNORECASE)
_PLANNED = re.compile(r"\b(expected|recommended|next|opportunit|future|todo|could|plan(?:ned|s)?)\b", re.IGNORECASE)
_PER_STEP = re.compile(r"\b(?:per|a|/)\s*(?:step|iter(?:ation)?|it)\b", re.IGNORECASE)


class Page:
    """The state of a document while it is read: headings, facts stated so far, and the run that its bullets describe."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.headings: dict[int, str] = {}
        self.above: dict[str, float] = {}
        """Facts of the current section."""
        self.everywhere: dict[str, set[float]] = {}
        """Values stated for fields that may hold for the whole document."""
        self.chips: dict[str, str] = {}
        """Longest name of each kind of chip mentioned."""
        self.shapes: dict[float, set[tuple[tuple[str, float], ...]]] = {}
        """Layers and width stated for each model size."""
        self.bullets: dict[str, float] = {}
        self.first_bullet = ""
        self.texts: dict[str, str] = {}
        self.rough: set[str] = set()
        self.ranks: dict[str, dict[int, float]] = {}
        self.model = ""

    @property
    def section(self) -> str:
        return " > ".join(self.headings[level] for level in sorted(self.headings))[-120:]

    @property
    def measured(self) -> bool:
        """Whether the section reports measurements: no heading marks it as expected or planned."""
        return not any(_PLANNED.search(title) for title in self.headings.values())

    def add_heading(self, level: int, title: str) -> None:
        outer = {other: text for other, text in self.headings.items() if other < level}
        self.headings = outer | {level: title.strip(" #:")[:80]}
        self.above = {}

    # Reading lines.

    def read_line(self, text: str, where: str) -> None:
        """Take the facts of a line: chips and nodes it mentions, 'KEY=value' pairs, or a 'key: value' bullet."""
        self._read_chips(text)
        nodes = _NODES.match(text)
        if nodes and len(text) < 60:
            self.above["nodes"] = float(nodes[1])
            self.above |= {"dp": float(nodes[2])} if nodes[2] else {}
        pairs = _PAIR.findall(text)
        bullet = _BULLET.match(text)
        if pairs:
            self._read_pairs(text, pairs)
        elif bullet and self.measured:
            self._read_bullet(bullet[1].strip(), bullet[2].strip(), where)

    def _read_chips(self, text: str) -> None:
        for number, chip in _CHIP.findall(text[:2000]):
            if len(chip) > len(self.chips.get(_chip_kind(chip), "")):
                self.chips[_chip_kind(chip)] = " ".join(chip.split())
            if number and self.measured:
                self.bullets.setdefault("devices", float(number))
        per_node = _PER_NODE.search(text[:2000])
        if per_node:
            self.everywhere.setdefault("devices_per_node", set()).add(float(per_node[1] or per_node[2]))

    def _read_pairs(self, text: str, pairs: list[tuple[str, str]]) -> None:
        """Read '200B model: TP=8, NLAYERS=80'. A line that is almost only such pairs applies to the lines below it."""
        if len(_PAIR.sub("", text).strip(" ,;/|.`")) > 28:
            return
        facts: dict[str, float] = {}
        for key, value in pairs:
            column = find_column(key)
            counted = column is not None and column.field.quantity == "count"
            number = amount(value.rstrip(".,"), "count", column.unit) if column and counted else None
            if column and number:
                facts[column.field.name] = number.value
        sized = _SIZED.search(text)
        size = amount(sized[1], "count") if sized else None
        if size:
            facts["params"] = size.value
            self._add_shape(size.value, facts)
        if sized or set(facts) & set(self.above):  # a field stated again starts another setup
            self.above = {name: value for name, value in self.above.items() if name in ("nodes", "dp")}
        self.above |= facts
        for name in DOCUMENT_FIELDS & set(facts):
            self.everywhere.setdefault(name, set()).add(facts[name])

    def _add_shape(self, size: float, facts: dict[str, float]) -> None:
        shape = tuple(sorted((name, value) for name, value in facts.items() if name in ("layers", "hidden")))
        if len(shape) == 2:
            self.shapes.setdefault(size, set()).add(shape)

    def _read_bullet(self, key: str, value: str, where: str) -> None:
        """Read 'Total Throughput: ~15,570 tokens/sec'."""
        rank, compared, rate = _RANK.match(key), _COMPARED.match(key), amount(value, "rate")
        reader = _BULLETS.get(key.lower())
        if rank:
            self._read_rank(int(rank[1]), value)
        elif compared and rate and re.search(r"tok", value, re.IGNORECASE):
            told = {"devices": float(compared[1]), "tokens_per_second": rate.value}
            self.reading.add_run(Run.told(where, told, ("tokens_per_second",) if rate.rough else (), self.section))
        elif reader:
            reader(self, value)
        else:
            self._read_field(key, value, where)

    def _read_field(self, key: str, value: str, where: str) -> None:
        """Read a bullet whose key is the name of a column; a second value for the same field is a conflict."""
        column = find_column(key)
        if column is None or not column.field.quantity:
            return
        field, name, words = column.field, column.field.name, value.lower()
        if field.quantity == "seconds" and not _PER_STEP.search(f"{words} {key.lower()}"):
            return
        if name == "tokens_per_step" and "token" not in words:
            return
        ends = parse_range(value)
        number = amount(f"{ends.high:g} {ends.rest}" if ends else value, field.quantity, column.unit)
        if number is None or (ends and field.quantity != "bytes"):
            return
        if name in self.bullets and not _near(self.bullets[name], number.value, 0.02):
            text = f"{key} is {number.value:g} here and {self.bullets[name]:g} above"
            values = (self.bullets[name], number.value)
            self.reading.add_claim(Claim(kind="conflict", where=where, text=text, values=values, about=(name,)))
            return
        self.bullets[name] = number.value
        self.first_bullet = self.first_bullet or where
        self.rough |= {name} if number.rough else set()

    def _read_rank(self, rank: int, value: str) -> None:
        title = self.section.rsplit(" > ", 1)[-1].lower()
        rate, plain = amount(value, "rate"), amount(value, "plain")
        if rate and re.search(r"tok\w*\s*(?:/|per)", value, re.IGNORECASE):
            self.ranks.setdefault("tokens_per_second", {})[rank] = rate.value
        elif plain and not plain.rest and "loss" in title:
            self.ranks.setdefault("loss", {})[rank] = plain.value
            if re.search(r"initial|step 0|first", title):
                self.bullets["loss_step"] = 0.0

    # Assigning facts to runs.

    def add_log_line(self, run: Run) -> None:
        """Add the run of a quoted log line, with all facts stated above it."""
        self.reading.add_run(run.merged(Run.told("", self.above)))

    def add_row(self, run: Run, section: str) -> None:
        """Add the run of a table row, with the facts above its table. A batch that contradicts them becomes a claim to check."""
        above_batch, row_batch = self.above.get("batch", math.nan), run.number("batch")
        if math.isfinite(above_batch) and math.isfinite(row_batch) and above_batch != row_batch and "params" not in self.above:
            text = f"the batch is {row_batch:g} in the row and {above_batch:g} in the text above its table"
            about = ("batch", run.where)
            values = (above_batch, row_batch)
            self.reading.add_claim(Claim(kind="conflict", where=run.where, text=text, values=values, about=about))
        above = {name: value for name, value in self.above.items() if name in FIELDS_ABOVE_A_TABLE}
        size = self.above.get("params", math.nan)
        if math.isfinite(size) and size != run.number("params"):
            above = {name: value for name, value in above.items() if name not in SHAPE}
        whole = replace(run.merged(Run.told("", above)), section=section)
        if whole.stated("params"):
            self._add_shape(whole.number("params"), {name: whole.number(name) for name in SHAPE if whole.stated(name)})
        self.reading.add_run(whole)

    def add_column(self, run: Run, title: str, section: str) -> None:
        """Add the run of one column of a transposed table; its title may be a sequence length or a number of GPUs."""
        counted = re.match(r"\s*(\d[\d,]*)\s*(tokens?|gpus?)\b", title, re.IGNORECASE)
        name = "seq" if counted and counted[2].lower().startswith("token") else "devices"
        more = {name: float(counted[1].replace(",", ""))} if counted else {}
        batch = run.get("batch")
        if batch is not None:
            run = run.without("batch").adding([batch._replace(fact="per_device_batch")])
        self.reading.add_run(replace(run.adding(Run.told("", more)), section=section))

    def close(self) -> None:
        """Add the run that the bullets describe, and fill every run with the facts that hold for the whole document."""
        ranks = {name: tuple(values[i] for i in sorted(values)) for name, values in self.ranks.items()}
        if MEASURED_FIELDS & set(self.bullets) or ranks:
            if "loss" in ranks:
                self.bullets.setdefault("first_loss", sum(ranks["loss"]) / len(ranks["loss"]))
            run = Run.told(self.first_bullet or "the text", {**self.bullets, **self.texts}, self.rough, "text")
            self.reading.runs.insert(0, replace(run, ranks=ranks))
        everywhere: dict[str, Value] = {name: next(iter(values)) for name, values in self.everywhere.items() if len(values) == 1}
        everywhere |= {"chip": next(iter(self.chips.values()))} if len(self.chips) == 1 else {}
        programs = {run.text("framework") for run in self.reading.runs} - {""}
        everywhere |= {"framework": programs.pop()} if len(programs) == 1 else {}
        whole = Run.told("", everywhere)
        self.reading.runs = [self._with_shape(run).merged(whole) for run in self.reading.runs]

    def _with_shape(self, run: Run) -> Run:
        """Fill in layers and width of a run that only states its size, if the document gives that size a single shape."""
        shapes = self.shapes.get(run.number("params"), set())
        if len(shapes) != 1 or run.stated("layers", "hidden"):
            return run
        shape = dict(next(iter(shapes)))
        differs = any(run.stated(name) and run.number(name) != value for name, value in shape.items())
        return run if differs else run.merged(Run.told("", shape))


def _chip_kind(chip: str) -> str:
    """Return the same key for 'NVIDIA A100 80GB' and 'a100'."""
    return re.sub(r"nvidia|geforce|tesla|rtx|[ -](?:sxm\d?|pcie|nvl)|[ -]\d+ ?gb|\s", "", chip.lower())


def _near(a: float, b: float, within: float) -> bool:
    return abs(a - b) <= within * max(abs(a), abs(b))


def _read_batch(page: Page, value: str) -> None:
    """Read '16 per device (128 total across 8 GPUs)'."""
    each = re.search(r"(\d[\d,]*)\s*(?:per|/|a)\s*(?:device|gpu|rank)", value, re.IGNORECASE)
    total = re.search(r"(\d[\d,]*)\s*(?:in )?total|total(?: of)? (\d[\d,]*)", value, re.IGNORECASE)
    gpus = re.search(r"(\d{1,5})\s*gpus\b", value, re.IGNORECASE)
    plain = amount(value, "count")
    for name, match in (("per_device_batch", each), ("batch", total), ("devices", gpus)):
        if match:
            page.bullets[name] = float((match[1] or match[2]).replace(",", ""))
    if not each and not total and plain and "token" not in value.lower():
        page.bullets["batch"] = plain.value


def _read_gpus(page: Page, value: str) -> None:
    number = re.match(r"(\d{1,5})\b", value)
    if number:
        page.bullets["devices"] = float(number[1])


def _read_model(page: Page, value: str) -> None:
    exact = re.search(r"(\d[\d,]{6,})\s*param", value)
    size = re.search(r"\b(\d+(?:\.\d+)?[MB])\b", value)
    params = amount(exact[1] if exact else size[1] if size else "", "count")
    if params:
        page.bullets["params"] = params.value
    page.texts["model"] = value.split("(")[0].strip()


def _read_forward(page: Page, value: str) -> None:
    """Read 'Average: ~45ms per forward pass'."""
    seconds = amount(value, "seconds", "s")
    if seconds and "forward" in value.lower():
        page.bullets["forward_seconds"] = seconds.value


_BULLETS = {
    "batch size": _read_batch, "gpus": _read_gpus, "gpu": _read_gpus, "model": _read_model, "average": _read_forward,
    "forward pass": _read_forward, "forward": _read_forward,
}  # fmt: skip
