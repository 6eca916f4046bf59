"""Read the SQLite file that Nsight Systems exports (nsys export --type sqlite): kernels, copies, runtime calls and NVTX ranges."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from meshwise.audit.doctor.scan import MAX_EVENTS, SQLITE
from meshwise.audit.doctor.timeline import NO_DETAIL, Builder, Detail, Timeline
from meshwise.catalogue import files
from meshwise.errors import UserError

KERNELS, COPIES, CALLS, RANGES = (
    "CUPTI_ACTIVITY_KIND_KERNEL",
    "CUPTI_ACTIVITY_KIND_MEMCPY",
    "CUPTI_ACTIVITY_KIND_RUNTIME",
    "NVTX_EVENTS",
)
COPY_NAMES = {1: "Memcpy HtoD (Pinned -> Device)", 2: "Memcpy DtoH (Device -> Pinned)", 8: "Memcpy DtoD (Device -> Device)",
              10: "Memcpy PtoP (Device -> Device)"}  # fmt: skip
PAGEABLE = 0


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
            opened.text_factory = _text
            tables = {name for (name,) in opened.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
            if KERNELS not in tables:
                raise UserError(f"{path.name}: no table {KERNELS}: not an export of Nsight Systems with CUDA traces")
            _read(opened, tables, builder)
            chip = _chip(opened, tables)
    except sqlite3.Error as error:
        raise UserError(f"{path.name}: cannot be read as an export of Nsight Systems ({error})") from None
    if not len(builder.gpu.start):
        raise UserError(f"{path.name}: it has no kernels")
    return builder.build(path.name, {"deviceProperties": [{"name": chip}]} if chip else {}, (), unit=1e-9)


def _text(raw: bytes) -> str:
    return raw.decode("utf-8", "replace")


def _read(opened: sqlite3.Connection, tables: set[str], builder: Builder) -> None:
    strings: dict[int, str] = dict(_rows(opened, "SELECT id, value FROM StringIds")) if "StringIds" in tables else {}
    for start, end, stream, link, name in _rows(
        opened, f"SELECT start, end, streamId, correlationId, demangledName FROM {KERNELS}"
    ):
        builder.gpu.add(
            builder.name(strings.get(name, str(name))), start, end - start, builder.lane(stream), link or 0, 0, NO_DETAIL
        )
    if COPIES in tables:
        for start, end, stream, link, kind, size, source in _rows(
            opened, f"SELECT start, end, streamId, correlationId, copyKind, bytes, srcKind FROM {COPIES}"
        ):
            name = COPY_NAMES.get(kind, f"Memcpy {kind}")
            name = name.replace("Pinned", "Pageable") if source == PAGEABLE and kind == 1 else name
            detail = builder.detail(Detail(bytes=float(size or 0)))
            builder.gpu.add(builder.name(name), start, end - start, builder.lane(stream), link or 0, 0, detail)
    if CALLS in tables:
        for start, end, thread, link, name in _rows(opened, f"SELECT start, end, globalTid, correlationId, nameId FROM {CALLS}"):
            text = strings.get(name, str(name)).partition("_v")[0]
            builder.calls.add(builder.name(text), start, end - start, builder.lane(thread), link or 0, 0, NO_DETAIL)
    if RANGES in tables:
        for start, end, thread, text, number in _rows(
            opened, f"SELECT start, end, globalTid, text, textId FROM {RANGES} WHERE end IS NOT NULL"
        ):
            builder.marks.add(
                builder.name(str(text or strings.get(number, ""))), start, end - start, builder.lane(thread), 0, 0, NO_DETAIL
            )


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
