"""Case: a measured step on generated answers, and the question that corresponds to it."""

import csv
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from meshwise.catalogue import cards, files
from meshwise.catalogue.rl_programs import find_rl_program, rl_programs
from meshwise.errors import UserError, quoted
from meshwise.plan.ask import TrainAsk
from meshwise.runs.fields import BY_NAME
from meshwise.runs.table import Skipped

NEEDED = ("prompts", "answers", "step_s")  # columns by which a table of such steps is known
PHASES = {"gen_s": "rollout", "old_log_prob_s": "old log-probabilities", "ref_s": "reference", "update_s": "update"}
"""Columns of seconds, and the phases that they measure. Generation includes the engine's wake-up and new weights."""
AXIS = re.compile(r"\b(tp|pp|cp|ep)\s*=?\s*(\d+)")
SHARE = re.compile(r"(\d+)% of memory for the engine")
DEVICES_PER_NODE = 8


@dataclass(frozen=True)
class Case:
    """A measured step."""

    row_id: str
    program: str
    ask: TrainAsk
    seconds: float
    phases: dict[str, float]  # measured seconds by phase; empty where only the step was measured


def is_rl_table(path: Path) -> bool:
    """Return whether a file has the columns of steps on generated answers."""
    if path.suffix != ".csv" or not path.is_file():
        return False
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        head = file.readline(1 << 16)
    return set(NEEDED) <= {name.strip() for names in csv.reader([head]) for name in names}


def read(path: Path) -> tuple[list[Case], list[Skipped]]:
    """Return the steps of a table, and the rows that cannot be asked, with the reason."""
    cases: list[Case] = []
    skipped: list[Skipped] = []
    rows = csv.DictReader(io.StringIO(files.text_of(path)))
    columns = list(rows.fieldnames or ())
    for number, row in enumerate(rows, 1):
        cells = {name.strip(): (row[name] or "").strip() for name in columns}
        row_id = cells.get("row_id") or f"{path.stem}-{number}"
        try:
            cases.append(_case(row_id, cells))
        except UserError as error:
            skipped.append(Skipped(row_id, str(error)))
    if not cases:
        why = skipped[0].reason if skipped else "the table is empty"
        raise UserError(f"{path.name}: none of its {len(skipped)} rows can be evaluated: {why}")
    return cases, skipped


def _case(row_id: str, cells: Mapping[str, str]) -> Case:
    seconds = _number(cells, "step_s")
    phases = {phase: _number(cells, column) for column, phase in PHASES.items() if cells.get(column)}
    program = _program(cells, row_id)
    prompt, devices = int(_number(cells, "prompt_tokens")), int(_number(cells, BY_NAME["devices"].title))
    limit = int(_number(cells, "max_seq"))
    mean = _number(cells, "mean_answer_tokens") if cells.get("mean_answer_tokens") else _number(cells, "mean_seq") - prompt
    mode = _mode(cells.get("mode", ""))
    note = cells.get("note", "").lower()
    share = cells.get("engine_share") or (str(int(found[1]) / 100) if (found := SHARE.search(note)) else "")
    apart = int(_number(cells, "gen_gpus")) if cells.get("gen_gpus") else devices // 2
    ask = TrainAsk(
        cells.get("ask_model") or cells.get("model", ""), on=_machine(cells, devices),
        objective=(cells.get("algorithm") or "grpo").lower(), batch=int(_number(cells, "prompts")), seq=limit, prompt=prompt,
        answers=int(_number(cells, "answers")), answer=f"{max(1, round(mean))}:{limit - prompt}", framework=program,
        finetune="" if cells.get("tune", "") in ("", "full") else cells["tune"], mode=mode,
        engine_tp=int(cells.get("gen_tp") or 0), rollout_devices=apart if mode != "colocated" else 0,
        eager=cells.get("eager", "") == "yes" or "eager" in note, engine_memory=float(share or 0),
        critic=cells.get("critic", ""), reward=cells.get("reward", ""), fix=_fixed(cells.get("train_layout", ""), program),
    )  # fmt: skip
    return Case(row_id, program, ask, seconds, phases)


def _number(cells: Mapping[str, str], name: str) -> float:
    text = cells.get(name, "")
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        value = 0.0
    if not 0 < value < 1e12:
        raise UserError(f"{name} is {quoted(text)}; expected a number above 0")
    return value


def _program(cells: Mapping[str, str], row_id: str) -> str:
    """Return the program of a row: what it names, or the one whose name is in its source."""
    named = cells.get("program") or cells.get("framework") or ""
    if found := find_rl_program(named) if named else None:
        return found.key
    text = files.squeeze(" ".join((cells.get("source", ""), cells.get("ref", ""), row_id)))
    words = [(files.squeeze(word), one.key) for one in rl_programs().values() for word in (one.key, *one.words)]
    inside = [(len(word), key) for word, key in words if word in text]
    if not inside:
        raise UserError(f"its program is not known; expected one of {', '.join(rl_programs())} in the column 'program'")
    return max(inside)[1]


def _mode(text: str) -> str:
    plain = text.lower()
    if "turn" in plain or "coloc" in plain or not plain:
        return "colocated"
    return "async" if "off" in plain or "async" in plain else "split"


def _machine(cells: Mapping[str, str], devices: int) -> str:
    """Return the cluster in the words of --on: as stated, or nodes of eight of the named chip."""
    stated = cells.get("on") or cells.get("ask_on")
    if stated:
        return stated
    chip = cards.find_card(cells.get("gpu", "")).key
    nodes, rest = divmod(devices, DEVICES_PER_NODE)
    return f"{devices}x{chip}" if nodes < 2 or rest else f"{nodes}x{DEVICES_PER_NODE}x{chip}"


def _fixed(text: str, program: str) -> tuple[str, ...]:
    """Return the axes that a row states, and recomputation where the program does it unless told otherwise."""
    plain = text.lower()
    assumed = ("recompute=full",) if rl_programs()[program].recomputes and "recompute" not in plain else ()
    return tuple(f"{axis}={size}" for axis, size in AXIS.findall(plain)) + assumed
