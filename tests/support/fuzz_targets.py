"""Every parser of files, streams and words that somebody else may have written, with valid inputs to start from."""

import gzip
import io
import itertools
import json
import random
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from meshwise import api, units
from meshwise.audit.doctor import timeline
from meshwise.audit.doctor.parts import traced_parts
from meshwise.catalogue import clusters, records
from meshwise.catalogue.chips import Chip
from meshwise.catalogue.files import table_of
from meshwise.cost.work import parse_batch
from meshwise.errors import UserError
from meshwise.models import find
from meshwise.run.bench.stream import Malformed, head_of, reply
from meshwise.run.probe.store import read_probe
from meshwise.run.serve import report
from meshwise.run.text import documents, tokens
from meshwise.run.train import launch
from meshwise.ui.views import tables
from meshwise.workers.trainer.contract.files.safetensors import WeightsError, contents
from meshwise.workers.trainer.contract.marker import Marker, Trained, read_marker
from support.measured_rows import ROW
from support.mutations import BYTES, JSON, TEXT, Mutation, mutated
from support.scripted_endpoint import END, STREAM, token, usage
from support.small_configs import SMALL, small
from support.tiny_runs import LLAMA, PLAIN

FIXTURES = Path(__file__).parent.parent / "fixtures" / "audit"
EXPECTED = (UserError, WeightsError, Malformed)
"""What a parser may raise: one line for the user."""


@dataclass(frozen=True)
class Target:
    """A parser: the name of the file that it reads, its valid inputs, and what is done with a mutated one."""

    file: str
    seeds: Callable[[], Sequence[bytes]]
    run: Callable[[Path], object]
    mutations: tuple[Mutation, ...] = JSON

    def input(self, number: int, seed: int = 0) -> bytes:
        """Return the mutated input of this number: the same one in every run."""
        rng = random.Random(f"{seed} {self.file} {number}")
        return mutated(rng, rng.choice(_seeds(self)), self.mutations)

    def feed(self, folder: Path, data: bytes) -> None:
        """Parse these bytes; raises only what is not a line for the user."""
        path = folder / self.file
        path.write_bytes(data)
        try:
            self.run(path)
        except EXPECTED as error:
            if len(str(error).splitlines()) > 1 or not str(error).isprintable():
                raise AssertionError(f"not one printable line: {error!r}") from None


@cache
def _seeds(target: Target) -> Sequence[bytes]:
    return target.seeds()


def _model(path: Path) -> None:
    model = find.find_model(str(path))
    tables.as_json(api.count(str(path)).to_json())
    assert model.params >= 0


def _trainer(path: Path) -> None:
    launch.buildable(str(path))


def _gguf() -> list[bytes]:
    from support.gguf_files import LLAMA_LAYER, SIZES, model

    path = model("llama", SIZES, LLAMA_LAYER).write(Path(_scratch(), "a.gguf"))
    return [path.read_bytes()]


def _gguf_array(path: Path) -> None:
    find.find_model(str(path))


def _safetensors() -> list[bytes]:
    rows: dict[str, Any] = {
        "__metadata__": {"format": "pt"},
        "a.weight": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
    }
    rows["b"] = {"dtype": "BF16", "shape": [], "data_offsets": [24, 26]}
    header = json.dumps(rows).encode()
    return [struct.pack("<Q", len(header)) + header + bytes(26)]


def _safetensors_table(path: Path) -> None:
    """Read a mutated table whose length is right, and the file as it is."""
    data = path.read_bytes()
    path.write_bytes(struct.pack("<Q", len(data)) + data + bytes(26))
    contents(path)


def _index(path: Path) -> None:
    (path.parent / "a.safetensors").write_bytes(_safetensors()[0])
    contents(path.parent)


def _plans() -> list[bytes]:
    folder = Path(_scratch())
    api.plan("llama-3-8b", on="1x8xh200", batch="64x2048").save(folder / "plan.json")
    api.serve("llama-3-8b:q4_k_m", on="2xrtx3090").save(folder / "serve.json")
    return [(folder / name).read_bytes() for name in ("plan.json", "serve.json")]


def _plan(path: Path) -> None:
    made = api.load(path)
    tables.as_json(made.to_json())


def _scratch() -> str:
    """Return a folder for valid inputs, removed when this process ends."""
    _FOLDERS.append(TemporaryDirectory(prefix="meshwise-fuzz-"))
    return _FOLDERS[-1].name


_FOLDERS: list["TemporaryDirectory[str]"] = []


def _chip(path: Path) -> None:
    records.read(Chip, table_of(path), path.name)


def _cluster(path: Path) -> None:
    clusters.find_cluster(str(path))


def _data(kind: str, *names: str) -> Callable[[], list[bytes]]:
    folder = Path(api.__file__).parent / "data" / kind
    return lambda: [(folder / name).read_bytes() for name in names]


def _runs() -> list[bytes]:
    rows = [ROW | {"row_id": str(i), "n_gpus": str(8 * i), "dp": str(8 * i), "mem_gb": "40"} for i in (1, 2)]
    return [",".join(ROW).encode() + b"\n" + b"".join(",".join(row.values()).encode() + b"\n" for row in rows)]


def _lines_of_runs() -> list[bytes]:
    return [(FIXTURES / "measurement.jsonl").read_bytes()]


def _validate(path: Path) -> None:
    result = api.validate(path)
    tables.as_json(result.score)
    tables.as_csv(result.rows())


def _probe() -> list[bytes]:
    from meshwise.catalogue.calibrations import Calibration
    from support.probe_rows import h200_rows

    rows = h200_rows(Calibration(matmul=0.8, tile=0.3, depth=300, memory=0.9, flash=0.5))
    chosen = [rows[0], *rows[1:4], *[row for row in rows if row["kind"] != "gemm"][1:]]
    return [b"\n".join(json.dumps(row).encode() for row in chosen)]


def _read_probe(path: Path) -> None:
    from meshwise.calibrate.train.probe import machine

    machine(read_probe(path))


def _logs(*names: str) -> Callable[[], list[bytes]]:
    return lambda: [(FIXTURES / name).read_bytes()[:6000] for name in names]


def _audit(path: Path) -> None:
    tables.as_json(api.audit(path, plan=False).to_json())


def _trace(path: Path) -> None:
    traced_parts(timeline.read(path))


def _traces() -> list[bytes]:
    event = {"ph": "X", "cat": "kernel", "name": "ampere_gemm", "ts": 1, "dur": 5, "pid": 1, "tid": 2}
    return [json.dumps({"traceEvents": [event, event | {"cat": "cpu_op", "ts": 9.5}, {"ph": "M"}]}).encode()]


def _stream(path: Path) -> None:
    data = path.read_bytes()
    rng = random.Random(len(data))
    edges = [0, *sorted(rng.randrange(len(data) + 1) for _ in range(5)), len(data)]
    arrivals = [(float(i), data[a:b]) for i, (a, b) in enumerate(itertools.pairwise(edges))]
    found = reply(0.0, 9.0, arrivals, closed=True)
    assert found.message.isprintable()
    head_of(data)


def _streams() -> list[bytes]:
    body = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 31\r\n\r\n{"data": [{"id": "a model"}]}  '
    return [STREAM + token("a") + token("b") + usage(2, 7) + END, b"HTTP/1.1 100 Continue\r\n\r\n" + body]


def _markers() -> list[bytes]:
    trained = Trained.of(PLAIN, 40)
    return [
        Marker(step=5, skipped=1, trained=trained, files={"tensors.json": (10, 11), "__0_0.distcp": (12, 13)}).text().encode()
    ]


def _marker(path: Path) -> None:
    folder = path.parent / "step-5"
    folder.mkdir(exist_ok=True)
    (folder / "complete").write_bytes(path.read_bytes())
    read_marker(folder)


def _documents() -> list[bytes]:
    lines = b"".join(json.dumps({"text": f"document {i} é", "id": i}).encode() + b"\n" for i in range(20))
    return [gzip.compress(lines)]


def _document(path: Path) -> None:
    for _ in documents.pieces(path, "text"):
        pass


def _token_files() -> list[bytes]:
    folder = Path(_scratch())
    import numpy as np

    with tokens.Writer(folder / "a.tokens", 300, 0, bytes(32)) as writer:
        writer.add(np.arange(300, dtype=np.uint32))
    return [(folder / "a.tokens").read_bytes()]


def _bench_report() -> list[bytes]:
    point = {"prompt": 512, "output": 128, "users": 1, "decode": 5.0, "decode_values": [5.0, 5.1], "prefill_values": [1.0, 2.0]}
    return [json.dumps({"format": 1, "kind": "bench", "date": "2026-01-01", "points": [point]}).encode()]


def _compare_reports(path: Path) -> None:
    now = json.loads(_bench_report()[0])
    report.against(report.read(path), now)


def _metadata() -> list[bytes]:
    parts = [[[0, 0], [1, 3], "__0_0.distcp", 0, 6], [[1, 0], [1, 3], "__0_0.distcp", 6, 6]]
    return [json.dumps({"tensors": {"weight.a": {"dtype": "float32", "size": [2, 3], "parts": parts}}}).encode()]


def _read_metadata(path: Path) -> None:
    from meshwise.workers.trainer.dcp_metadata import MetadataError, read_metadata

    try:
        read_metadata(path.parent, {"__0_0.distcp": (12, 0)})
    except MetadataError as error:
        raise UserError(str(error)) from None


def _words(path: Path) -> None:
    """Read words of a command line: quantities, batches, clusters, models."""
    text = path.read_bytes().decode("utf-8", "replace")
    readers: list[Callable[[str], object]] = [
        *(lambda text, unit=unit: units.parse(text, unit) for unit in ("bytes", "seconds", "count", "FLOP/s", "bytes/s", "dollars/s")),
        units.whole_length, lambda text: parse_batch(text, 2048), clusters.find_cluster, find.find_preset,
        lambda text: api.plan("llama-debug", on="1x8xh200", batch=text), lambda text: api.count("llama-debug", tokens=text),
    ]  # fmt: skip
    problems = io.StringIO()
    for reader in readers:
        try:
            reader(text)
        except UserError as error:
            problems.write(str(error))


ROTARY = LLAMA | {"rope_theta": 1e4, "rope_scaling": {"rope_type": "default"}}
LOGS = ("megatron-lm-22b.log", "torchtitan-0001.log", "nanotron-0001.log", "deepspeed-1.log", "hf-a.log")
SENTENCES = [
    b"4M tokens",
    b"80GiB",
    b"2048x4096",
    b"48x8xa100-80gb-sxm@400Gbps",
    b"jean-zay:48",
    b"1e30",
    b"15T",
    b"400Gbps",
    b"4.5min",
    b"llama3.3:70b",
]


def _launch_files(*suffixes: str) -> Callable[[], list[bytes]]:
    folder = FIXTURES.parent / "launch"
    return lambda: [path.read_bytes() for path in sorted(folder.iterdir()) if path.suffix in suffixes]


def _check(path: Path) -> None:
    verdict = api.check(path, on="8x8xh100-sxm")
    tables.as_json(verdict.to_json())
    assert verdict.code in (0, 1)


TARGETS: dict[str, Target] = {
    "config.json": Target("config.json", lambda: [json.dumps(small(kind)).encode() for kind in SMALL], _model),
    "config.json of the trainer": Target(
        "config.json", lambda: [json.dumps(values).encode() for values in (ROTARY, small("bloom"), small("gpt2"))], _trainer
    ),
    "GGUF": Target("a.gguf", _gguf, _gguf_array, BYTES),
    "safetensors": Target("model.safetensors", _safetensors, lambda path: contents(path), BYTES),
    "safetensors table": Target("model.safetensors", lambda: [_safetensors()[0][8:-26]], _safetensors_table),
    "safetensors index": Target("model.safetensors.index.json", lambda: [b'{"weight_map": {"a.weight": "a.safetensors"}}'], _index),
    "plan.json": Target("plan.json", _plans, _plan),
    "chip TOML": Target("chip.toml", _data("chips", "h200.toml", "tpu-v5p.toml"), _chip, TEXT),
    "cluster TOML": Target("cluster.toml", _data("clusters", "jean-zay.toml", "dgx-h100.toml"), _cluster, TEXT),
    "runs, CSV": Target("runs.csv", _runs, _validate, TEXT),
    "runs, JSONL": Target("runs.jsonl", _lines_of_runs, _validate),
    "probe rows": Target("rows.jsonl", _probe, _read_probe),
    "training logs": Target("run.log", _logs(*LOGS), _audit, TEXT),
    "reports": Target("report.md", _logs("eight-gpus.md", "rig-a.md", "tuning-notes.md", "llama-bench.md"), _audit, TEXT),
    "result tables": Target("table.csv", _logs("llama-bench.csv", "llama-bench-cpu.csv"), _audit, TEXT),
    "result JSON": Target("table.jsonl", _logs("llama-bench.jsonl", "measurement.jsonl", "trainer_state-a.json"), _audit),
    "profiler trace": Target("trace.json", _traces, _trace),
    "token stream": Target("stream", _streams, _stream, TEXT),
    "bench report": Target("before.json", _bench_report, _compare_reports),
    "checkpoint marker": Target("marker", _markers, _marker),
    "checkpoint metadata": Target("tensors.json", _metadata, _read_metadata, BYTES),
    "documents, .jsonl.gz": Target("text.jsonl.gz", _documents, _document, BYTES),
    "token file": Target("a.tokens", _token_files, tokens.read, BYTES),
    "launch scripts": Target("train.sh", _launch_files(".sh", ".slurm", ".sbatch"), _check, TEXT),
    "launch YAML": Target("train.yaml", _launch_files(".yaml", ".yml"), _check, TEXT),
    "launch JSON": Target("config.json", _launch_files(".json"), _check),
    "launch TOML": Target("train.toml", _launch_files(".toml"), _check, TEXT),
    "words": Target("words", lambda: SENTENCES, _words, TEXT),
}  # fmt: skip
