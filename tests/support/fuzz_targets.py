"""Every parser of files, streams and words that somebody else may have written, with valid inputs to start from."""

import gzip
import io
import itertools
import json
import pickle
import random
import shlex
import sqlite3
import struct
from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from meshwise import api, units
from meshwise.audit.doctor import nsight, snapshot, timeline
from meshwise.audit.doctor.parts import traced_parts
from meshwise.audit.doctor.split import split
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
from support.launch_seeds import seeds_of
from support.measured_rows import ROW
from support.mutations import BYTES, JSON, LAUNCH, TEXT, Mutation, mutated
from support.quiet import quiet
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
    seconds: float = 10
    """CPU time that one input may take."""

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
    traced_parts(split(timeline.read(path)))


def _traces() -> list[bytes]:
    event = {"ph": "X", "cat": "kernel", "name": "ampere_gemm", "ts": 1, "dur": 5, "pid": 1, "tid": 2}
    return [json.dumps({"traceEvents": [event, event | {"cat": "cpu_op", "ts": 9.5}, {"ph": "M"}]}).encode()]


def _snapshots() -> list[bytes]:
    frames = [{"name": "forward", "filename": "a.py", "line": 7}]
    block = {"size": 2**20, "state": "inactive", "frames": frames}
    segment = {"total_size": 2**21, "allocated_size": 2**20, "segment_pool_id": (0, 0), "blocks": [block]}
    actions = [{"action": name, "size": 4096, "addr": 2**46} for name in ("alloc", "free_completed", "segment_free", "oom")]
    found = pickle.dumps({"segments": [segment], "device_traces": [actions]}, protocol=4)
    return [found, gzip.compress(found)]


def _nsight() -> list[bytes]:
    path = Path(_scratch()) / "report.sqlite"
    with closing(sqlite3.connect(path)) as made:
        made.executescript(
            "CREATE TABLE StringIds (id, value); INSERT INTO StringIds VALUES (1, 'gemm'), (2, 'cudaLaunchKernel');"
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end, streamId, correlationId, demangledName);"
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1000, 5000, 7, 1, 1), (6000, 8000, 'x', 2, 'y'), (9000, 9500, 7, 3, 1);"
            "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, end, globalTid, correlationId, nameId);"
            "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (0, 500, 1, 1, 2), (600, 900, 1, 2, NULL);"
        )
    return [path.read_bytes()]


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


def _preflights() -> list[bytes]:
    rows: list[dict[str, Any]] = []
    for rank in range(4):
        own = {"rank": rank, "node": rank // 2}
        rows.append({"kind": "machine", "device": "cuda", "host": f"n{rank // 2}", "local": rank % 2, "name": "NVIDIA H200", "nodes": 2,
                     "cores": 96, "load": 0.5, **own})  # fmt: skip
        rows += [{"kind": "figure", "what": what, "rate": 7e14, **own} for what in ("matrix products", "memory", "disk")]
        rows += [{"kind": "link", "what": "between", "from": rank, "to": to, "rate": 4e10 / (1 + 9 * (to == 3)), "latency": 1e-5, **own}
                 for to in range(4) if to != rank]  # fmt: skip
        rows.append(
            {"kind": "again", "what": "between", "from": rank, "to": 3, "rate": 4e9, "latency": 1e-4, "usual": rank == 1, **own}
        )
    own = {"rank": 0, "node": 0}
    seen = {"host": "n0", "devices": 2, "chip": "H200", "link": "NV18", "network": 5e10, "sources": {"chip": "nvidia-smi"}}
    rows += [{"kind": "facts", "seen": seen, **own}, {"kind": "xid", "codes": "79 48", **own},
             {"kind": "absent", "rank": 4, "node": 2, "why": "x"},
             {"kind": "counters", "pcie.link.width.current": "8", "pcie.link.width.max": "16", **own},
             {"kind": "missing", "what": "pairs and rings", "why": "a dead link", **own}]  # fmt: skip
    return [b"\n".join(json.dumps(row).encode() for row in rows)]


def _preflight(path: Path) -> None:
    from meshwise.run.preflight.ask import PreflightAsk
    from meshwise.run.preflight.start import judged

    done = judged(PreflightAsk(read=str(path.parent)), path.parent, None)
    tables.as_json(done.to_json())
    _shown(done)
    for words in done.advice():
        assert all(word in done.exclude for word in ",".join(shlex.split(words)).removeprefix("srun,--exclude=").split(",")[2:])


def _shown(result: object) -> None:
    """Draw a result as a terminal shows it; what a stranger wrote has no control characters there."""
    from rich.console import Console

    from meshwise.ui import views

    out = io.StringIO()
    Console(file=out, width=110, color_system=None).print(views.of(result, 110))
    assert all(c.isprintable() or c == "\n" for c in out.getvalue())


def _tool_outputs() -> list[bytes]:
    slurm = (
        "NodeName=n1 CPUTot=96 Gres=gpu:h100:8(S:0-1) OS=Linux 6.1 RealMemory=2000000 State=IDLE ThreadsPerCore=1\n"
        "NodeName=n2 CPUTot=96 Gres=gpu:h100:8 RealMemory=2000000 State=DOWN*+DRAIN Reason=gpu fell off [root@2026-11-18]\n"
    )
    matrix = "\tGPU0\tGPU1\tNIC0\nGPU0\t X \tNV18\tPIX\nGPU1\tNV18\t X \tSYS\n"
    node = {
        "metadata": {"name": "pool-1", "labels": {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3"}}, "spec": {"unschedulable": True},
        "status": {"allocatable": {"nvidia.com/gpu": "8", "memory": "1048576Ki", "cpu": "96"}, "conditions": [{"type": "Ready"}]},
    }  # fmt: skip
    return [slurm.encode(), matrix.encode(), json.dumps({"items": [node]}).encode()]


def _tools(path: Path) -> None:
    """Read what Slurm, Kubernetes or nvidia-smi print as the cluster that `preflight --facts` writes."""
    from meshwise.run.preflight import cluster, result
    from meshwise.run.preflight import tools as node_tools

    text = path.read_bytes().decode("utf-8", "replace")
    node_tools.weakest(node_tools.topology(text))
    for lister in (node_tools.slurm, node_tools.kubernetes):
        try:
            nodes = lister(lambda *_: text)
        except UserError:
            continue
        if nodes:
            seen = cluster.found(nodes, [])
            written = seen.write(path.parent)
            assert written is None or clusters.find_cluster(str(written))
            _shown(result.Preflight(seen, path.parent, written))


def _traffic() -> list[bytes]:
    rows = [{"timestamp": 1000 * i, "input_length": 512, "output_length": 64, "hash_ids": [1, 2, i]} for i in range(9)]
    return ["\n".join(map(json.dumps, rows)).encode(), json.dumps(rows).encode()]


def _traffic_tables() -> list[bytes]:
    azure = "TIMESTAMP,ContextTokens,GeneratedTokens\n" + "".join(
        f"2024-05-10 00:00:{i:02}.009930+00:00,512,64\n" for i in range(9)
    )
    return [("seconds,prompt,output\n" + "".join(f"{i},512,64\n" for i in range(9))).encode(), azure.encode()]


def _differ(path: Path) -> None:
    mine = path.with_name("mine.json")
    if not mine.exists():
        mine.write_bytes(_seeds(TARGETS["plan.json"])[0])
    tables.as_json(api.diff(mine, path).to_json())


def _calls() -> list[bytes]:
    calls = {
        "plan": {"model": "llama-debug", "on": "8xh100-sxm", "batch": 64, "seq": "512", "fix": ["tp=2"]},
        "serve": {"model": "llama-3-8b:q4_k_m", "on": "2xrtx3090", "context": "16k"}, "count": {"model": "llama-3-8b", "seq": "8k"},
        "check": {"files": {"a.yml": "adapter: lora\nmicro_batch_size: 1\nsequence_len: 512\n"}, "on": "1xrtx4090"},
        "audit": {"params": "124M", "seq": 128, "batch": "16/gpu", "on": "8xh100-sxm", "step": "7.5s", "files": {"a.log": "step 1"}},
        "show": {"catalogue": "chips", "name": "h100"}, "explain": {"plan": "meshwise://results/1", "versus": "tp=8"},
    }  # fmt: skip
    return [json.dumps({"tool": tool, "arguments": words}).encode() for tool, words in calls.items()]


def _call(path: Path) -> None:
    """Call a tool of `meshwise mcp` with the arguments of a request."""
    from meshwise.ui.mcp import server
    from meshwise.ui.mcp import tools as offered

    try:
        request = json.loads(path.read_bytes())
        tool, words = offered.tools()[request["tool"]], request["arguments"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return  # the protocol's own package refuses it
    desk = offered.Desk()
    answer = server.called(desk, tool, words) if isinstance(words, dict) else ""
    said = server.answered(desk, answer).content[0].text  # pyright: ignore
    assert len(said) < 2 * offered.MAX_TEXT_CHARS


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


def _check(path: Path) -> None:
    with quiet(reads=path.parent):
        verdict = api.check(path, on="8x8xh100-sxm")
        tables.as_json(verdict.to_json())
    assert verdict.code in (0, 1)


def _launch(file: str, kind: str, mutations: tuple[Mutation, ...] = LAUNCH) -> Target:
    return Target(file, lambda: seeds_of(kind), _check, mutations, seconds=5)


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
    "memory snapshot": Target("memory.pickle", _snapshots, snapshot.read, BYTES),
    "Nsight Systems": Target("report.sqlite", _nsight, nsight.read, BYTES),
    "token stream": Target("stream", _streams, _stream, TEXT),
    "plan diff": Target("other.json", _plans, _differ),
    "preflight rows": Target("rows.jsonl", _preflights, _preflight),
    "sinfo, kubectl, nvidia-smi": Target("output", _tool_outputs, _tools, (*JSON, *TEXT)),
    "traffic, JSON": Target("traffic.jsonl", _traffic, lambda path: tables.as_json(api.trace(path).to_json())),
    "traffic, CSV": Target("traffic.csv", _traffic_tables, lambda path: tables.as_json(api.trace(path).to_json()), TEXT),
    "calls of mcp": Target("call.json", _calls, _call),
    "bench report": Target("before.json", _bench_report, _compare_reports),
    "checkpoint marker": Target("marker", _markers, _marker),
    "checkpoint metadata": Target("tensors.json", _metadata, _read_metadata, BYTES),
    "documents, .jsonl.gz": Target("text.jsonl.gz", _documents, _document, BYTES),
    "token file": Target("a.tokens", _token_files, tokens.read, BYTES),
    "launch scripts": _launch("train.sh", "shell"),
    "launch YAML": _launch("train.yaml", "tree"),
    "launch JSON": _launch("config.json", "json", (*JSON, *LAUNCH)),
    "launch TOML": _launch("train.toml", "toml"),
    "launch Markdown": _launch("README.md", "page"),
    "launch Modelfile": _launch("Modelfile", "modelfile"),
    "launch Python": _launch("train.py", "python"),
    "launch files of any name": _launch("launch", ""),
    "words": Target("words", lambda: SENTENCES, _words, TEXT),
}  # fmt: skip
