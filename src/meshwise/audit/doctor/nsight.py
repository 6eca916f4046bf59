"""Read the SQLite file that Nsight Systems exports (nsys export --type sqlite): kernels, copies, runtime calls and NVTX ranges."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false, reportUnknownLambdaType=false
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from meshwise.audit.doctor.scan import MAX_EVENTS, SQLITE
from meshwise.audit.doctor.timeline import NO_DETAIL, Builder, Columns, Detail, Timeline
from meshwise.catalogue import files
from meshwise.errors import UserError

KERNELS, COPIES, CALLS = (f"CUPTI_ACTIVITY_KIND_{kind}" for kind in ("KERNEL", "MEMCPY", "RUNTIME"))
RANGES = "NVTX_EVENTS"
COPY_NAMES = {1: "Memcpy HtoD (Pinned -> Device)", 2: "Memcpy DtoH (Device -> Pinned)", 8: "Memcpy DtoD (Device -> Device)",
              10: "Memcpy PtoP (Device -> Device)"}  # fmt: skip
PAGEABLE = 0
MAX_VALUE_BYTES = 1 << 20  # bytes of one value: a column may be computed, and repeat a text at will


def matches(path: Path) -> bool:
    """Return whether a file is an SQLite database."""
    with files.open_file(path) as file:
        return file.peek(len(SQLITE))[: len(SQLITE)] == SQLITE


def read(path: Path) -> Timeline:
    """Read one rank's profile. The file is opened read-only, and nothing in it is run."""
    builder = Builder()
    try:
        with sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True) as opened:
            opened.execute("PRAGMA trusted_schema = OFF")
            opened.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
            opened.text_factory = _text
            tables = {name for (name,) in opened.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if KERNELS not in tables:
                raise UserError(f"{path.name}: no table {KERNELS}: not an export of Nsight Systems with CUDA traces")
            _read(opened, tables, builder)
            chip = _chip(opened, tables)
    except (sqlite3.Error, TypeError, ValueError, OverflowError) as error:  # values may have any type
        raise UserError(f"{path.name}: cannot be read as an export of Nsight Systems ({error})") from None
    if not len(builder.gpu):
        raise UserError(f"{path.name}: it has no kernels")
    return builder.build(path.name, {"deviceProperties": [{"name": chip}]} if chip else {}, (), unit=1e-9)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _read(opened: sqlite3.Connection, tables: set[str], builder: Builder) -> None:
    said = _rows(opened, "SELECT id, value FROM StringIds") if "StringIds" in tables else ()
    strings: dict[int, str] = {number: text for number, text in said if isinstance(text, str)}

    def add(columns: Columns, table: str, fields: str, name_of: Callable[..., str]) -> None:
        """Add the rows of a table: start, end, lane and link, then what its name is made of, and its bytes as the last of copies."""
        for start, end, lane, link, *said in (
            _rows(opened, f"SELECT start, end, {fields} FROM {table}") if table in tables else ()
        ):
            detail = builder.detail(Detail(bytes=float(said[-1] or 0))) if table == COPIES else NO_DETAIL
            columns.add(builder.name(name_of(*said)), start, end - start, builder.lane(lane), link or 0, 0, detail)

    def copy(kind: int, source: int, _: int) -> str:
        name = COPY_NAMES.get(kind, f"Memcpy {kind}")
        return name.replace("Pinned", "Pageable") if source == PAGEABLE and kind == 1 else name

    def text_of(number: int) -> str:
        return strings.get(number, str(number))

    add(builder.gpu, KERNELS, "streamId, correlationId, demangledName", text_of)
    add(builder.gpu, COPIES, "streamId, correlationId, copyKind, srcKind, bytes", copy)
    add(builder.calls, CALLS, "globalTid, correlationId, nameId", lambda number: text_of(number).partition("_v")[0])
    add(builder.marks, RANGES, "globalTid, 0, text, textId", lambda text, number: str(text or strings.get(number, "")))


def _rows(opened: sqlite3.Connection, query: str) -> Iterator[Any]:
    for count, row in enumerate(opened.execute(query)):
        if count > MAX_EVENTS:
            raise UserError(f"more than {MAX_EVENTS:,} rows; profile fewer steps")
        if query.startswith("SELECT start") and not (isinstance(row[0], int) and isinstance(row[1], int) and row[1] >= row[0]):
            continue
        yield row


def _chip(opened: sqlite3.Connection, tables: set[str]) -> str:
    if "TARGET_INFO_GPU" not in tables:
        return ""
    found = opened.execute("SELECT name FROM TARGET_INFO_GPU LIMIT 1").fetchone()
    return str(found[0])[:80] if found else ""
