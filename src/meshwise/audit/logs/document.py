"""What a document says of its runs outside of tables, and to which runs it belongs."""

import math
import re
from dataclasses import replace

from meshwise.audit.logs.columns import find_field
from meshwise.audit.logs.numbers import amount, span
from meshwise.audit.logs.run import Claim, Reading, Run

SHAPE = frozenset({"n_layers", "d_model", "n_heads", "d_ff", "n_kv_heads"})
ABOVE = SHAPE | {"global_batch_seqs", "seq_len", "vocab"}
"""What a line above a table says of its rows. A layout stands in the row itself, or nowhere."""
EVERYWHERE = frozenset({"seq_len", "vocab", "gpus_per_node"})
"""What holds for a whole document, where it says one value only."""
MEASURED = frozenset(
    {
        "seconds",
        "tokens_per_second",
        "tokens_per_second_per_gpu",
        "samples_per_second",
        "mfu",
        "tflops",
        "memory",
        "peak",
        "loss",
        "reserved",
        "allocated",
    }
)
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


def is_span(text: str) -> bool:
    return span(text) is not None


class Page:
    """A document as it is being read: headings, what was said last, and the one run that its bullets describe."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.path: dict[int, str] = {}
        self.local: dict[str, float] = {}
        self.everywhere: dict[str, set[float]] = {}
        self.chips: dict[str, str] = {}
        self.sized: dict[float, set[tuple[tuple[str, float], ...]]] = {}
        self.own: dict[str, float] = {}
        self.texts: dict[str, str] = {}
        self.rough: set[str] = set()
        self.ranks: dict[str, dict[int, float]] = {}
        self.begun, self.model = "", ""

    @property
    def section(self) -> str:
        return " > ".join(self.path[level] for level in sorted(self.path))[-120:]

    @property
    def measured(self) -> bool:
        """Not under a heading of what is expected or planned."""
        return not any(_PLANNED.search(title) for title in self.path.values())

    def heading(self, level: int, title: str) -> None:
        self.path = {other: text for other, text in self.path.items() if other < level} | {level: title.strip(" #:")[:80]}
        self.local = {}

    # What lines say.

    def said(self, text: str, where: str) -> bool:
        """Take what a line says; whether it was a statement rather than a sentence."""
        self._mentions(text)
        nodes = _NODES.match(text)
        if nodes and len(text) < 60:
            self.local["nodes"] = float(nodes[1])
            self.local |= {"dp": float(nodes[2])} if nodes[2] else {}
        pairs = _PAIR.findall(text)
        if pairs:
            return self._pairs(text, pairs)
        bullet = _BULLET.match(text)
        return bool(bullet) and self.measured and self._bullet(bullet[1].strip(), bullet[2].strip(), where)

    def _mentions(self, text: str) -> None:
        for number, chip in _CHIP.findall(text[:2000]):
            if len(chip) > len(self.chips.get(_key(chip), "")):
                self.chips[_key(chip)] = " ".join(chip.split())
            if number and self.measured:
                self.own.setdefault("n_gpus", float(number))
        per_node = _PER_NODE.search(text[:2000])
        if per_node:
            self.everywhere.setdefault("gpus_per_node", set()).add(float(per_node[1] or per_node[2]))

    def _pairs(self, text: str, pairs: list[tuple[str, str]]) -> bool:
        """'200B model: TP=8, NLAYERS=80': a line of little else than such pairs holds for what follows it."""
        if len(_PAIR.sub("", text).strip(" ,;/|.`")) > 28:
            return False
        found: dict[str, float] = {}
        for key, value in pairs:
            field = find_field(key)
            number = amount(value.rstrip(".,"), field.quantity, field.unit) if field and field.quantity == "count" else None
            if field and number:
                found[field.name] = number.value
        sized = _SIZED.search(text)
        size = amount(sized[1], "count") if sized else None
        if size:
            found["params"] = size.value
            self._shaped(size.value, found)
        if sized or set(found) & set(self.local):  # said anew: what was said before it is of something else
            self.local = {name: value for name, value in self.local.items() if name in ("nodes", "dp")}
        self.local |= found
        for name in EVERYWHERE & set(found):
            self.everywhere.setdefault(name, set()).add(found[name])
        return bool(found)

    def _shaped(self, size: float, found: dict[str, float]) -> None:
        shape = tuple(sorted((name, value) for name, value in found.items() if name in ("n_layers", "d_model")))
        if len(shape) == 2:
            self.sized.setdefault(size, set()).add(shape)

    def _bullet(self, key: str, value: str, where: str) -> bool:
        """'Total Throughput: ~15,570 tokens/sec'."""
        rank = _RANK.match(key)
        if rank:
            return self._rank(int(rank[1]), value)
        compared = _COMPARED.match(key)
        rate = amount(value, "rate")
        if compared and rate and re.search(r"tok", value, re.IGNORECASE):
            run = Run(
                where=where,
                numbers={"n_gpus": float(compared[1]), "tokens_per_second": rate.value},
                rough=frozenset({"tokens_per_second"} if rate.rough else ()),
                section=self.section,
            )
            self.reading.keep(run)
            return True
        handled = _SPECIAL.get(key.lower())
        if handled:
            return handled(self, value)
        return self._general(key, value, where)

    def _general(self, key: str, value: str, where: str) -> bool:
        field = find_field(key)
        if field is None or not field.quantity:
            return False
        name, words = field.name, value.lower()
        if field.quantity == "seconds" and not _PER_STEP.search(f"{words} {key.lower()}"):
            return False
        if name == "tokens_per_step" and "token" not in words:
            return False
        ends = span(value)
        found = amount(f"{ends.high:g} {ends.rest}" if ends else value, field.quantity, field.unit)
        if found is None or (ends and field.quantity != "bytes"):
            return False
        if name in self.own and not _near(self.own[name], found.value, 0.02):
            text = f"{key} is {found.value:g} here and {self.own[name]:g} above"
            self.reading.claim(
                Claim(kind="conflict", where=where, text=text, values=(self.own[name], found.value), about=(name,))
            )
            return True
        self.own[name] = found.value
        self.begun = self.begun or where
        self.rough |= {name} if found.rough else set()
        return True

    def _rank(self, rank: int, value: str) -> bool:
        title = self.section.rsplit(" > ", 1)[-1].lower()
        rate, plain = amount(value, "rate"), amount(value, "plain")
        if rate and re.search(r"tok\w*\s*(?:/|per)", value, re.IGNORECASE):
            self.ranks.setdefault("tokens_per_second", {})[rank] = rate.value
        elif plain and not plain.rest and "loss" in title:
            self.ranks.setdefault("loss", {})[rank] = plain.value
            if re.search(r"initial|step 0|first", title):
                self.own["loss_step"] = 0.0
        else:
            return False
        return True

    # Whose it is.

    def logged(self, run: Run) -> None:
        """A log line has all that was said last."""
        self.reading.keep(run.filled(self.local, {}))

    def row(self, run: Run, section: str) -> None:
        """A row of a table. What stands above and differs from the row is a finding, not a choice."""
        told, own = self.local.get("global_batch_seqs", math.nan), run.get("global_batch_seqs")
        if math.isfinite(told) and math.isfinite(own) and told != own and "params" not in self.local:
            text = f"the batch is {own:g} in the row and {told:g} in the text above its table"
            about = ("global_batch_seqs", run.where)
            self.reading.claim(Claim(kind="conflict", where=run.where, text=text, values=(told, own), about=about))
        above = {name: value for name, value in self.local.items() if name in ABOVE}
        sized = self.local.get("params", math.nan)
        if math.isfinite(sized) and sized != run.get("params"):
            above = {name: value for name, value in above.items() if name not in SHAPE}
        whole = replace(run.filled(above, {}), section=section)
        if whole.stated("params"):
            self._shaped(whole.get("params"), dict(whole.numbers))
        self.reading.keep(whole)

    def column(self, run: Run, title: str, section: str) -> None:
        """A column of a table on its side: its title may be a length or a number of GPUs."""
        said = re.match(r"\s*(\d[\d,]*)\s*(tokens?|gpus?)\b", title, re.IGNORECASE)
        name = "seq_len" if said and said[2].lower().startswith("token") else "n_gpus"
        more = {name: float(said[1].replace(",", ""))} if said else {}
        numbers = dict(run.numbers)
        if "global_batch_seqs" in numbers:
            numbers["per_device_batch"] = numbers.pop("global_batch_seqs")
        self.reading.keep(replace(run, numbers={**numbers, **more}, section=section))

    def close(self) -> None:
        """The run of the bullets, and what holds for the whole document given to every run."""
        ranks = {name: tuple(values[i] for i in sorted(values)) for name, values in self.ranks.items()}
        if MEASURED & set(self.own) or ranks:
            for name, values in ranks.items():
                if name == "loss":
                    self.own.setdefault("loss", sum(values) / len(values))
            run = Run(
                where=self.begun or "the text",
                numbers=dict(self.own),
                texts=dict(self.texts),
                ranks=ranks,
                rough=frozenset(self.rough),
                section="text",
            )
            self.reading.runs.insert(0, run)
        numbers = {name: next(iter(values)) for name, values in self.everywhere.items() if len(values) == 1}
        kinds = {_key(chip) for chip in self.chips.values()}
        texts = {"gpu": next(iter(self.chips.values()))} if len(kinds) == 1 else {}
        programs = {run.text("framework") for run in self.reading.runs} - {""}
        texts |= {"framework": programs.pop()} if len(programs) == 1 else {}
        self.reading.runs = [self._shaped_by_size(run).filled(numbers, texts) for run in self.reading.runs]

    def _shaped_by_size(self, run: Run) -> Run:
        """Layers and width of a run that states its size alone, where the document gives that size one shape."""
        shapes = self.sized.get(run.get("params"), set())
        if len(shapes) != 1 or run.stated("n_layers", "d_model"):
            return run
        shape = dict(next(iter(shapes)))
        differs = any(run.stated(name) and run.get(name) != value for name, value in shape.items())
        return run if differs else run.filled(shape, {})


def _key(chip: str) -> str:
    """'NVIDIA A100 80GB' and 'a100' are one kind."""
    return re.sub(r"nvidia|geforce|tesla|rtx|[ -](?:sxm\d?|pcie|nvl)|[ -]\d+ ?gb|\s", "", chip.lower())


def _near(a: float, b: float, within: float) -> bool:
    return abs(a - b) <= within * max(abs(a), abs(b))


def _batch(page: Page, value: str) -> bool:
    """'16 per device (128 total across 8 GPUs)'."""
    each = re.search(r"(\d[\d,]*)\s*(?:per|/|a)\s*(?:device|gpu|rank)", value, re.IGNORECASE)
    total = re.search(r"(\d[\d,]*)\s*(?:in )?total|total(?: of)? (\d[\d,]*)", value, re.IGNORECASE)
    gpus = re.search(r"(\d{1,5})\s*gpus\b", value, re.IGNORECASE)
    plain = amount(value, "count")
    for name, match in (("per_device_batch", each), ("global_batch_seqs", total), ("n_gpus", gpus)):
        if match:
            page.own[name] = float((match[1] or match[2]).replace(",", ""))
    if not each and not total and plain and "token" not in value.lower():
        page.own["global_batch_seqs"] = plain.value
    return True


def _gpus(page: Page, value: str) -> bool:
    number = re.match(r"(\d{1,5})\b", value)
    if number:
        page.own["n_gpus"] = float(number[1])
    return bool(number)


def _model(page: Page, value: str) -> bool:
    exact = re.search(r"(\d[\d,]{6,})\s*param", value)
    size = re.search(r"\b(\d+(?:\.\d+)?[MB])\b", value)
    found = amount(exact[1] if exact else size[1] if size else "", "count")
    if found:
        page.own["params"] = found.value
    page.texts["model"] = value.split("(")[0].strip()
    return True


def _forward(page: Page, value: str) -> bool:
    """'Average: ~45ms per forward pass'."""
    found = amount(value, "seconds", "s")
    if found and "forward" in value.lower():
        page.own["forward_seconds"] = found.value
    return bool(found) and "forward" in value.lower()


_SPECIAL = {
    "batch size": _batch,
    "gpus": _gpus,
    "gpu": _gpus,
    "model": _model,
    "average": _forward,
    "forward pass": _forward,
    "forward": _forward,
}
