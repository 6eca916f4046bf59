"""torchtitan logs of several versions: steps, validation, batch, mesh, configuration. Formats: torchtitan 0.1.0, 0.2.2 and 0.3.0."""

import pytest

from meshwise.programs.logs import detect
from meshwise.runs.run import Run
from support.audits import audit_of, read_text, runs_of

ROWS = {"0001": (38894.51, 41.76e9), "0003": (7503.28, 63.07e9), "0005": (38299.12, 26.41e9)}
STEP = "step:  {}  loss: 11.50000  grad_norm:  3.1000  memory: 12.34GiB(25.67%)  tps: 5,321  tflops: 1,311.80  mfu: 31.50%\n"
STEPS = "".join(STEP.format(i) for i in range(1, 6))


def read(text: str) -> Run:
    (run,) = read_text(text, "torchtitan").runs
    return run


def test_older_logs_state_rate_memory_and_layout_of_the_same_runs_as_nanotron():
    for name, (rate, memory) in ROWS.items():
        (nanotron,), (titan,) = runs_of(f"nanotron-{name}.log"), runs_of(f"torchtitan-{name}.log")
        assert titan.number("tokens_per_second_per_device") == pytest.approx(rate, rel=0.005), name
        assert titan.number("memory") == pytest.approx(memory, rel=0.001), name
        assert [titan.get(axis) for axis in ("dp", "tp", "pp")] == [nanotron.get(axis) for axis in ("dp", "tp", "pp")], name
        assert titan.text("chip") == "NVIDIA H100 80GB HBM3", name
        assert nanotron.number("mbs") == titan.number("per_device_batch"), name


def test_every_figure_of_a_step_is_read():
    run = read(STEPS)
    assert run.number("memory") == 12.34 * 2**30
    assert run.number("tokens_per_second_per_device") == 5321
    assert run.number("tflops") == 1311.8e12
    assert run.number("mfu") == pytest.approx(0.315)


def test_words_for_tokens_and_an_unknown_mfu_are_read():
    assert read(STEPS.replace("tps:", "wps:")).number("tokens_per_second_per_device") == 5321
    assert not read(STEPS.replace("31.50%", "N/A")).stated("mfu")


def test_validation_is_no_step_of_training():
    validation = "validate step:  3  loss: 11.9000  memory: 99.00GiB(99.00%)  tps: 90,000\n"
    run = read(STEPS + validation * 20)
    assert (run.number("steps_seen"), run.number("memory"), run.number("tokens_per_second_per_device")) == (
        5,
        12.34 * 2**30,
        5321,
    )
    assert detect.detect(STEPS) is detect.find_format("torchtitan")


def test_a_log_of_today_states_all_that_a_prediction_needs():
    (run,) = runs_of("torchtitan-8b.log")
    assert (run.number("devices"), run.number("dp"), run.number("tp"), run.number("pp")) == (64, 64, 1, 1)
    assert (run.number("per_device_batch"), run.number("batch"), run.number("accumulation")) == (1, 64, 1)
    assert (run.number("seq"), run.number("params"), run.number("vocab")) == (8192, 8_030_261_248, 128256)
    assert (run.number("layers"), run.number("hidden"), run.number("kv_heads")) == (32, 4096, 8)
    assert run.number("ffn") == 14336  # of Llama 3 8B, and not printed: it follows from the size
    assert (run.text("recompute"), run.text("sharding"), run.text("chip")) == ("selective", "fsdp", "NVIDIA A100-SXM4-80GB")
    assert run.number("memory") == 44.83 * 2**30  # of training; validation took 46.02
    assert run.number("tokens_per_second_per_device") == pytest.approx(2904, rel=0.005)


def test_an_audit_of_a_log_of_today_predicts_the_layout_it_states():
    audit = audit_of("torchtitan-8b.log")
    assert not audit.findings
    (prediction,) = audit.predictions.train
    assert prediction.case.memory == pytest.approx(44.83 * 2**30, rel=1e-5)
    (one,) = audit.predictions.suggestions
    assert one.layout == "dp64 tp1 pp1 mbs1 zero3 selective recompute"
    assert audit.runs[0].printed_formula == ("Megatron", pytest.approx(1.0, abs=0.001))  # 6 (N - embedding) + 12 L h s


BATCHES = {
    "Trainer is initialized with local batch size 4, global batch size 256, gradient accumulation steps 8, sequence length 4096, "
    "total steps 1000 (warmup 200)": 8,
    "Training starts at step 1, with local batch size 4, global batch size 256, sequence length 4096, gradient accumulation steps 16, "
    "total steps 1000 (warmup 200)": 16,
}


def test_the_batch_is_read_in_any_order_of_its_figures():
    for line, accumulation in BATCHES.items():
        run = read(line + "\n" + STEPS)
        found = [run.number(name) for name in ("per_device_batch", "batch", "seq", "accumulation")]
        assert found == [4, 256, 4096, accumulation], line


MESHES = {
    "Building 2-D device mesh with ['dp_replicate', 'dp_shard'], [2, 8]": (16, 16, "hsdp"),
    "Building 1-D device mesh with ['dp_shard'], [8]": (8, 8, "fsdp"),
    "Building 3-D device mesh with ['pp', 'dp_shard', 'tp'], [2, 4, 2]": (16, 4, "fsdp zero2"),
    "Building device mesh with parallelism: pp=1, dp_replicate=8, dp_shard=1, cp=1, tp=2, ep=1, etp=1": (16, 8, "ddp"),
    "Building device mesh with parallelism: pp=4, dp_replicate=1, dp_shard=2, cp=2, tp=2, ep=2": (32, 2, "fsdp zero2"),
    "Building device mesh with parallelism: pp=1, dp_replicate=1, dp_shard=1, cp=1, tp=8, ep=1": (8, 1, ""),
}
"""Devices, data-parallel ranks and sharding. FSDP keeps gathered parameters with a pipeline: its default for reshard_after_forward."""


def test_the_mesh_gives_devices_replicas_and_sharding():
    runs = {line: read(line + "\n" + STEPS) for line in MESHES}
    assert {line: (run.number("devices"), run.number("dp"), run.text("sharding")) for line, run in runs.items()} == MESHES


def test_a_pipeline_cuts_the_local_batch_into_micro_batches():
    head = (
        "Building device mesh with parallelism: pp=2, dp_replicate=1, dp_shard=4, cp=1, tp=1, ep=1\n"
        "Using pipeline schedule Interleaved1F1B with 8 microbatches and 4 stages.\n"
        "Trainer is initialized with local batch size 16, global batch size 128, gradient accumulation steps 2, sequence length 4096\n"
    )
    run = read(head + STEPS)
    assert (run.number("mbs"), run.number("accumulation"), run.number("vpp")) == (2, 16, 2)
    assert run.number("mbs") * run.number("accumulation") * run.number("dp") == run.number("batch")
    assert not run.stated("per_device_batch")


ARGUMENTS = "Building llama3 8B with Args(dim={}, layers=32, heads=32, kv_heads=8, vocab_size=128256, max_seq_len=8192)\n"
SIZE = "Model llama3 8B size: 8,030,261,248 total parameters\n"


def test_a_width_is_taken_only_if_it_explains_the_exact_size():
    assert read(ARGUMENTS.format(4096) + SIZE + STEPS).number("ffn") == 14336
    assert not read(ARGUMENTS.format(5120) + SIZE + STEPS).stated("hidden")  # experts or norms that the count does not know
    assert read(ARGUMENTS.format(5120) + SIZE + STEPS).text("model") == "llama3 8B"


def test_checkpointing_is_read_in_the_words_of_each_version():
    lines = {"Applied selective activation checkpointing": "selective", "Applied FullAC activation checkpointing": "full"}
    lines |= {"Applied MemoryBudgetAC activation checkpointing": ""}
    assert {line: read(f"{line} to the model\n{STEPS}").text("recompute") for line in lines} == lines
