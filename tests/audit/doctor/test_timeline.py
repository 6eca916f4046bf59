"""Traces are read one event at a time, whatever they hold; what is no trace gets one line."""

import gzip
import json
import pickle
import sqlite3

import pytest

from meshwise import api
from meshwise.audit.doctor import diagnosis, nsight, scan, snapshot, split, timeline
from meshwise.errors import UserError
from support.traces import GPU, kernel, write_trace


def events(path):
    return list(scan.Trace(path))


def test_a_trace_is_read_plain_gzipped_and_as_a_bare_list(tmp_path):
    plain = write_trace(tmp_path / "t.json", GPU)
    zipped = tmp_path / "t.json.gz"
    zipped.write_bytes(gzip.compress(plain.read_bytes()))
    bare = tmp_path / "list.json"
    bare.write_text(json.dumps(GPU))
    assert events(plain) == events(zipped) == events(bare) == GPU


def test_keys_before_and_after_the_events_are_kept(tmp_path):
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"distributedInfo": {"rank": 3, "world_size": 8}, "traceEvents": GPU, "traceName": "x"}))
    trace = scan.Trace(path)
    assert len(list(trace)) == len(GPU)
    assert trace.facts == {"distributedInfo": {"rank": 3, "world_size": 8}, "traceName": "x"}
    assert (timeline.read(path).rank, timeline.read(path).world) == (3, 8)


def test_a_truncated_trace_is_read_up_to_its_end(tmp_path):
    whole = write_trace(tmp_path / "t.json", GPU * 50).read_bytes()
    for name, content in (("cut.json", whole[: len(whole) // 2]), ("cut.json.gz", gzip.compress(whole)[:-60])):
        path = tmp_path / name
        path.write_bytes(content)
        found = api.doctor(path)
        assert any("is cut off" in note for note in found.notes)


@pytest.mark.parametrize(
    "content",
    [
        b"", b"{}", b"[]", b"hello", b'{"traceEvents": [', b'{"traceEvents": []}', b'{"traceEvents": [1, "x", null, [[]]]}', b"\x1f\x8bxx",
        b'{"traceEvents": [{"ph": "X", "cat": "kernel", "ts": NaN, "dur": 1e400, "name": 5}]}', b"SQLite format 3\x00" + b"x" * 200,
        b'{"traceEvents": ' + b"[" * 100_000,
    ],
)  # fmt: skip
def test_what_is_no_trace_gets_one_line(tmp_path, content):
    path = tmp_path / "t.json"
    path.write_bytes(content)
    with pytest.raises(UserError) as error:
        api.doctor(path)
    assert "\n" not in str(error.value)
    assert "t.json" in str(error.value)


def test_strange_values_in_events_do_no_harm(tmp_path):
    strange = [
        kernel("gemm", 0, 10) | {"args": {"stream": [], "correlation": 10**30, "External id": "x", "Input Dims": {"a": 1}}},
        kernel("gemm", 20, 10) | {"args": None},
        kernel("gemm", 40, -5),
        kernel("gemm", 10**400, 5),
        {
            "ph": "X",
            "cat": "cpu_op",
            "name": None,
            "ts": 1,
            "dur": 2,
            "args": {"Input Dims": [[-1, "x"], 3, [[2]]], "Input type": 5},
        },
    ]
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"traceEvents": strange, "deviceProperties": "x", "distributedInfo": []}))
    assert api.doctor(path).profiles[0].parts["matmul"] == pytest.approx(20e-6)


def step_of_products(
    *, operator="cpu_op", device="kernel", call="cuda_runtime", owner="External id", dims="Input Dims", mark="user_annotation"
):
    """Return two marked steps of two products in the words of some version of torch."""

    def event(category, name, start, length, tid, **args):
        return {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": tid, "ts": start, "dur": length, "args": args}

    found = []
    for number in range(4):
        start = 1000 * number
        if number % 2 == 0:
            found.append(event(mark, f"ProfilerStep#{number}", start, 2000, 1))
        known = {owner: number + 1, "correlation": number + 1}
        shapes = {owner: number + 1, dims: [[64, 32], [32, 16]], "Input type": ["float", "float"]}
        found.append(event(operator, "aten::mm", start + 100, 50, 1, **shapes))
        found.append(event(call, "hipExtModuleLaunchKernel", start + 110, 5, 1, **known))
        found.append(event(device, "Cijk_Ailk_Bljk_SB_MT64x64", start + 200, 700, 7, stream=7, **known))
    return found


def test_the_words_of_older_versions_of_torch_are_read(tmp_path):
    words = {
        "operator": "Operator",
        "device": "Kernel",
        "call": "Runtime",
        "owner": "external id",
        "dims": "Input dims",
        "mark": "Operator",
    }
    (new,), (old,) = (
        api.doctor(write_trace(tmp_path / name, events)).profiles
        for name, events in (("new.json", step_of_products()), ("old.json", step_of_products(**words)))
    )
    assert (old.found_by, old.steps, old.parts, old.products) == (new.found_by, new.steps, new.parts, new.products)
    assert [(one.m, one.n, one.k, one.count) for one in new.products] == [(64, 16, 32, 2.0)]


def test_copies_of_a_gpu_of_amd_are_copies(tmp_path):
    copy = {
        "ph": "X",
        "cat": "gpu_memcpy",
        "name": "CopyDeviceToHost",
        "pid": 1,
        "tid": 8,
        "ts": 3900,
        "dur": 1000,
        "args": {"stream": 8},
    }
    found = api.doctor(write_trace(tmp_path / "t.json", [*step_of_products(call="hip_runtime"), copy]))
    assert "copies to the host" in [fault.name for fault in found.faults]
    assert found.profiles[0].parts["copy"] == pytest.approx(1000e-6 / 3, rel=0.6)


def test_a_name_may_hold_line_ends_and_a_file_several_parts(tmp_path):
    raw = json.dumps({"traceEvents": step_of_products()}).encode().replace(b"aten::mm", b"aten::mm\n\x01", 1)
    plain, parted = tmp_path / "t.json", tmp_path / "t.json.gz"
    plain.write_bytes(raw)
    parted.write_bytes(b"".join(gzip.compress(part) for part in (raw[:500], raw[500:900], raw[900:])))
    assert api.doctor(plain).profiles[0].parts == api.doctor(parted).profiles[0].parts


def test_a_trace_of_another_program_gets_one_line(tmp_path):
    jax = {"displayTimeUnit": "ns", "traceEvents": [{"ph": "X", "pid": 1, "tid": 2, "ts": 1.0, "dur": 2.0, "name": "fusion.1"}]}
    path = tmp_path / "t.json"
    path.write_text(json.dumps(jax))
    with pytest.raises(UserError, match="not a trace of torch's profiler"):
        api.doctor(path)
    path.write_text('{"traceEvents": [{"ph": "X", "name": "a"b"}]}')
    with pytest.raises(UserError, match="damaged or cut off"):
        api.doctor(path)


def test_communication_behind_computation_is_hidden(tmp_path):
    path = write_trace(tmp_path / "t.json", GPU)
    one = diagnosis.diagnose([path], diagnosis.AuditAsk()).profiles[0]
    assert {part: round(1e6 * seconds) for part, seconds in one.parts.items()} == {
        "matmul": 100, "attention": 50, "elementwise": 30, "optimizer": 20, "dp": 40, "launch": 20,
    }  # fmt: skip
    assert one.hidden == {"dp": pytest.approx(10e-6)}


def test_operators_count_without_those_they_call(tmp_path):
    def op(name, start, length):
        return {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": start, "dur": length}

    path = write_trace(tmp_path / "t.json", [op("aten::linear", 0, 10), op("aten::addmm", 2, 6), op("aten::relu", 12, 3)])
    read = timeline.read(path)
    index, start, end = split.own_time(read.ops)
    spans = [(read.names[read.ops.name[i]], round(1e6 * a), round(1e6 * b)) for i, a, b in zip(index, start, end, strict=True)]
    assert spans == [("aten::linear", 0, 2), ("aten::addmm", 2, 8), ("aten::linear", 8, 10), ("aten::relu", 12, 15)]


def test_an_export_of_nsight_systems_is_read(tmp_path):
    path = tmp_path / "report.sqlite"
    with sqlite3.connect(path) as made:
        made.executescript(
            "CREATE TABLE StringIds (id INTEGER, value TEXT);"
            "CREATE TABLE TARGET_INFO_GPU (name TEXT);"
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end, streamId, correlationId, demangledName);"
            "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, end, globalTid, correlationId, nameId);"
            "CREATE TABLE NVTX_EVENTS (start, end, globalTid, text, textId);"
            "INSERT INTO StringIds VALUES (1, 'sm90_xmma_gemm_bf16'), (2, 'cudaLaunchKernel_v7000'), (3, 'flash_fwd_kernel');"
            "INSERT INTO TARGET_INFO_GPU VALUES ('NVIDIA H100 80GB HBM3');"
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1000, 5000, 7, 1, 1), (6000, 8000, 7, 2, 3);"
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (11000, 15000, 7, 3, 1), (16000, 18000, 7, 4, 3);"
            "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (0, 500, 1, 1, 2), (600, 900, 1, 2, 2);"
            "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (9000, 9500, 1, 3, 2), (9600, 9900, 1, 4, 2);"
            "INSERT INTO NVTX_EVENTS VALUES (0, 8500, 1, 'ProfilerStep#1', NULL), (8600, 18500, 1, 'ProfilerStep#2', NULL);"
        )
    one = api.doctor(path).profiles[0]
    assert (one.chip, len(one.steps)) == ("NVIDIA H100 80GB HBM3", 2)
    assert one.parts["matmul"] == pytest.approx(4e-6)
    assert one.parts["attention"] == pytest.approx(2e-6)
    other = tmp_path / "other.sqlite"
    with sqlite3.connect(other) as made:
        made.execute("CREATE TABLE x (a)")
    with pytest.raises(UserError, match="not an export of Nsight Systems"):
        api.doctor(other)


def test_a_string_of_nsight_systems_without_a_text_is_known_by_its_number(tmp_path):
    path = tmp_path / "report.sqlite"
    with sqlite3.connect(path) as made:
        made.executescript(
            "CREATE TABLE StringIds (id, value); INSERT INTO StringIds VALUES (1, 'gemm'), (2, NULL), (3, x'00ff'), (4, 5.5);"
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end, streamId, correlationId, demangledName);"
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1000, 5000, 7, 1, 1), (6000, 8000, 7, 2, 3);"
            "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, end, globalTid, correlationId, nameId);"
            "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (0, 500, 1, 1, 2), (600, 900, 1, 2, 3), (950, 990, 1, 3, 4);"
        )
    assert {"gemm", "2", "3", "4"} <= set(nsight.read(path).names)


class Runs:
    def __reduce__(self):
        return (print, ("run",))


def test_a_memory_snapshot_is_read_and_nothing_in_it_is_run(tmp_path, capsys):
    blocks = [{"size": 2**30, "state": "active_allocated"}, {"size": 2**29, "state": "inactive"}]
    found = {
        "segments": [{"total_size": 3 * 2**29, "allocated_size": 2**30, "blocks": blocks}],
        "device_traces": [
            [{"action": "segment_free", "size": 5}] * 3 + [{"action": "alloc", "size": 2**20}, {"action": "oom", "size": 1}]
        ],
    }
    path = tmp_path / "memory-rank0.pickle"
    path.write_bytes(pickle.dumps(found))
    made = api.doctor(path)
    assert [fault.name for fault in made.faults[:2]] == ["out of memory", "allocator"]
    assert (made.memory[0].reserved, made.memory[0].allocated) == (1.5 * 2**30, 2**30)
    path.write_bytes(pickle.dumps({"segments": [Runs()]}))
    with pytest.raises(UserError, match="a pickle can run code"):
        api.doctor(path)
    assert capsys.readouterr().out == ""


def test_a_snapshot_that_names_nothing_cannot_fill_memory_or_time(tmp_path):
    """Each ran for ever or took all memory when C's unpickler read it, or when its words were made text."""
    pairs = b"".join(b"h" + bytes([i]) + b"h" + bytes([i]) + b"\x86\x94" for i in range(60))
    nested = []
    for _ in range(60):
        nested = [nested, nested]
    hostile = {
        "a key of tuples of tuples": b"\x80\x04}()\x94" + pairs + b"K\x01u.",
        "the same, one item": b"\x80\x04})\x94" + pairs + b"K\x01s.",
        "a memo of two billion": b"\x80\x04K\x01r\xff\xff\xff\x7f.",
        "a set": pickle.dumps({"segments": {1, 2}}),
        "gzip": gzip.compress(pickle.dumps({"segments": []}))[:-9] + b"\xff" * 9,
    }
    path = tmp_path / "memory.pickle"
    for name, data in hostile.items():
        path.write_bytes(data)
        with pytest.raises(UserError, match=r"not a snapshot|damaged gzip"):
            print(name, snapshot.read(path))
    path.write_bytes(pickle.dumps({"segments": [], "device_traces": [[{"action": nested}, {"action": "oom"}]]}))
    assert (snapshot.read(path).failed, snapshot.read(path).allocations) == (1, 0)


def test_a_column_that_is_computed_cannot_fill_memory(tmp_path):
    path = tmp_path / "report.sqlite"
    with sqlite3.connect(path) as made:
        made.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end, streamId, correlationId, demangledName AS (hex(zeroblob(400000000))))"
        )
        made.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (1, 2, 7, 1)")
    with pytest.raises(UserError, match="too big"):
        api.doctor(path)
