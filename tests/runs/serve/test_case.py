"""Tables of served models: rows as cases, reasons for skipped rows, and refused tables."""

import csv
import math
from pathlib import Path

import pytest

from meshwise.errors import UserError
from meshwise.runs.serve.case import ServeCase, read_cases
from meshwise.runs.serve.predict import predict
from meshwise.runs.table import find_table, is_serving_table
from support.command import one_line
from support.every import check_every
from support.serve_tables import built_in

COLUMNS = (
    "row_id,model,quant,engine,gpu,n_gpus,n_hosts,"
    "link,split,prompt_len,gen_len,batch_or_concurrency,prefill_tok_s,decode_tok_s,outcome,note"
)

PLAIN = {
    "row_id": "r1",
    "model": "Llama 3 8B",
    "quant": "Q4_K_M",
    "engine": "llama.cpp",
    "gpu": "RTX 4090",
    "n_gpus": "1",
    "prompt_len": "512",
    "gen_len": "128",
    "decode_tok_s": "130",
    "outcome": "ok",
}


def table(folder: Path, *rows: dict[str, str], columns: str = COLUMNS) -> Path:
    lines = [columns, *(",".join(row.get(column, "") for column in columns.split(",")) for row in rows)]
    path = folder / "mine.csv"
    path.write_text("\n".join(lines))
    return path


def one(folder: Path, **changed: str) -> ServeCase:
    (found,), skipped = read_cases(table(folder, PLAIN | changed))
    assert not skipped
    return found


def reason(folder: Path, **changed: str) -> str:
    _, (skipped,) = read_cases(table(folder, PLAIN, PLAIN | changed))
    return skipped.reason


def test_every_row_of_the_published_tables_is_read() -> None:
    """Counts as in data/measurements/README.md."""
    for name, rows in (
        ("xiongjiedai_llama3_bench", 346),
        ("xiongjiedai_notebook_runs", 149),
        ("xiongjiedai_memory_buffers", 64),
        ("llamacpp_fit_dryrun", 50),
        ("engines_at_load", 1391),
        ("alcf_vllm_trt", 775),
        ("rocm_vllm_mi300x", 281),
        ("llamacpp_gb10", 140),
        ("h200_llamacpp", 21),
        ("h200_vllm", 18),
        ("h200_vllm_bench", 48),
    ):
        path = find_table(name)
        cases, skipped = read_cases(path)
        assert (len(cases), skipped) == (rows, []), name
        assert is_serving_table(path)
    assert not is_serving_table(find_table("bloom_prequel"))


def test_a_run_that_was_reported_twice_stands_once() -> None:
    """The rule of data/measurements/README.md: rows agree in every cell but these three."""
    with find_table("localmaxxing_community").open(encoding="utf-8", newline="") as file:
        rows = [tuple(v for k, v in row.items() if k not in ("row_id", "date", "note")) for row in csv.DictReader(file)]
    assert len(set(rows)) == len(rows) == 317


def test_rocwmma_reads_shared_keys_for_every_query_head(tmp_path: Path) -> None:
    """strix_halo_rpc: at a depth of 32k, GLM-4.6 (92 layers of 96 heads) takes 1.40 s longer with rocWMMA and MiniMax-M2 (62 of 48) 0.49 s:
    as their query heads, 2.97:1, not as their keys, 1.48:1. Llama 3 8B has 32 query heads for 8 of keys."""
    row = {"gpu": "Radeon 8060S", "prompt_len": "0", "note": "rocm7_1"}
    shared, apart = one(tmp_path, **row), one(tmp_path, **row | {"note": "rocm7_1-rocwmma"})
    assert [sum(c.demand.stages[0][0].reads) for c in (apart, shared)] == [pytest.approx(4 * 131072), pytest.approx(131072)]


def test_a_table_without_a_known_model_is_refused() -> None:
    with pytest.raises(UserError, match=r"none of its 5 rows can be evaluated; 5 of them: the chip is not stated") as refused:
        read_cases(find_table("local_rig_notes"))
    assert one_line(refused.value)


def test_a_row_of_llama_bench_gives_its_prompt_and_output() -> None:
    cases = {case.row_id: case for case in built_in("xiongjiedai_llama3_bench")[0]}
    first = cases["xj3-0049"]
    assert (first.model.name, first.weights.format, first.chip.key, first.runtime.key) == (
        "llama-3-8b",
        "Q4_K_M",
        "rtx3090",
        "llama.cpp-2024-05",
    )
    assert (first.work.prompt, first.work.output, first.decode) == (0, 512, 115.42)
    assert math.isnan(first.prefill)
    assert first.group == ("rtx3090", 1)


def test_prompts_far_slower_than_in_another_format_are_marked() -> None:
    """The A100 SXM read prompts in F16 ten times slower than in Q4_K_M; on four of them one prompt in Q4_K_M was slower than F16."""
    slow = [case for case in built_in("xiongjiedai_llama3_bench")[0] if case.slow_prompt]
    assert {case.chip.key for case in slow} == {"a100-80gb-sxm"}
    assert sum(case.weights.format == "F16" for case in slow) == 8
    assert len(slow) == 9


def test_a_power_cap_slows_computing_but_not_reading(tmp_path: Path) -> None:
    free, held = one(tmp_path, gpu="3090"), one(tmp_path, gpu="3090", note="power caps W 230/185")
    assert held.chip.flops["fp16"] == pytest.approx(free.chip.flops["fp16"] * (185 / 350) ** 0.5)
    assert held.chip.bandwidth == free.chip.bandwidth


def test_models_are_known_by_the_words_people_use(tmp_path: Path) -> None:
    def check(name: str, preset: str) -> None:
        assert one(tmp_path, model=name).model.name == preset

    check_every(check, [("LLaMA 1 30B", "llama-33b"), ("LLaMA 1 7B", "llama-7b"), ("Llama 3.1 8B Instruct", "llama-3.1-8b")])


def test_the_build_follows_from_the_date_of_the_row(tmp_path: Path) -> None:
    assert one(tmp_path, note="2023-11-20").runtime.key == "llama.cpp-2023-12"
    assert one(tmp_path, note="2024-02-01").runtime.key == "llama.cpp-2024-05"
    assert one(tmp_path, note="2025-08").runtime.key == one(tmp_path).runtime.key == "llama.cpp"


def test_splits_and_hosts_are_read_from_the_row(tmp_path: Path) -> None:
    vllm = {"engine": "vLLM", "quant": "bf16", "gpu": "H100 SXM", "model": "Llama 3 70B", "batch_or_concurrency": "16"}
    default, mixed = (
        one(tmp_path, **vllm, n_gpus="8"),
        one(tmp_path, **vllm, n_gpus="8", split="tp4 pp2", n_hosts="2", link="100GbE"),
    )
    assert (default.placement.tp, len(default.demand.stages)) == (8, 1)
    assert (mixed.placement.tp, len(mixed.demand.stages), mixed.rig.hosts) == (4, 2, (0, 0, 0, 0, 1, 1, 1, 1))
    assert mixed.rig.network is not None
    assert mixed.rig.network.bandwidth == 12.5e9
    assert mixed.work.users == 16
    assert one(tmp_path, n_gpus="2", split="row").placement.split == "row"


def test_a_full_context_drops_old_tokens(tmp_path: Path) -> None:
    case = one(tmp_path, prompt_len="494", gen_len="1023", note="n_ctx 512")
    assert (case.work.context, case.work.prompt + case.work.output) == (512, 512)


def test_an_unknown_engine_is_evaluated_as_another_and_noted(tmp_path: Path) -> None:
    assert one(tmp_path, engine="LMDeploy", quant="fp8", gpu="H100").assumed == ("engine 'lmdeploy' evaluated as vLLM",)
    assert one(tmp_path, engine="TensorRT-LLM", quant="fp8", gpu="H100").runtime.engine == "tensorrt-llm"
    assert one(tmp_path, engine="MLX", quant="F16", gpu="M2 Ultra").runtime.engine == "mlx"
    assert one(tmp_path, engine="KoboldCpp", quant="F16", gpu="M2 Ultra").runtime.engine == "llama.cpp"
    assert one(tmp_path, engine="Ollama").assumed == ()


def test_a_row_that_cannot_be_evaluated_says_why(tmp_path: Path) -> None:
    def check(changed: dict[str, str], words: str) -> None:
        assert words in reason(tmp_path, **changed)

    check_every(
        check,
        [
            ({"gpu": "RTX 9999"}, "the card 'RTX 9999' is not in the catalogue"),
            ({"gpu": ""}, "the chip is not stated"),
            ({"model": "llama-3-9b"}, "unknown model 'llama-3-9b'"),
            ({"quant": "Q9_K"}, "unknown quantization 'Q9_K'"),
            ({"decode_tok_s": "fast"}, "decode_tok_s is 'fast', not a number"),
            ({"decode_tok_s": "-3"}, "decode_tok_s is '-3'; expected a number of zero or more"),
            ({"decode_tok_s": ""}, "neither a speed nor a memory is stated"),
            ({"outcome": "crashed"}, "outcome is 'crashed'"),
            ({"n_gpus": "3", "n_hosts": "2"}, "3 devices in 2 hosts"),
            ({"n_gpus": "2.5"}, "n_gpus is 2.5, not a whole number"),
            ({"split": "diagonal"}, "llama.cpp has no split 'diagonal'"),
            ({"engine": "vllm", "n_gpus": "3", "quant": "bf16"}, "32 heads cannot be split over 3 devices"),
        ],
    )


def test_a_table_that_is_damaged_is_refused_in_one_line(tmp_path: Path) -> None:
    path = table(tmp_path, PLAIN)
    path.write_text(path.read_text() + ",one,field,too,many" * 3)
    with pytest.raises(UserError, match=r"mine.csv, line 2: \d+ fields, where the header has 16") as refused:
        read_cases(path)
    assert one_line(refused.value)
    with pytest.raises(UserError, match="the column 'quant' is missing"):
        read_cases(table(tmp_path, PLAIN, columns="model,gpu,n_gpus,decode_tok_s"))


@pytest.mark.parametrize(
    ("engine", "era", "date", "build"),
    [
        ("vLLM", "0.6.3", "", "vllm-2024-09"),
        ("vLLM 0.5.4", "", "", "vllm-2024-09"),
        ("vLLM", "", "2024", "vllm-2024-09"),
        ("vLLM", "", "2024-08-01", "vllm-2024-09"),
        ("vLLM", "0.15.1", "2024-08-01", "vllm"),  # a release says more than a date
        ("vLLM", "", "2026-02", "vllm"),
        ("vLLM", "", "", "vllm"),
        ("TensorRT-LLM", "0.12.0", "", "tensorrt-llm-2024-09"),
        ("TensorRT-LLM", "1.0.0rc3", "", "tensorrt-llm-2025-12"),
        ("TensorRT-LLM", "1.2.0rc6.post2", "", "tensorrt-llm"),
        ("SGLang", "0.5.6.post2", "", "sglang-2025-12"),
        ("SGLang", "0.5.9", "2025-11-02", "sglang"),
        ("vLLM", "", "2025-11-02", "vllm-2025-12"),
        ("llama.cpp", "", "2023-11", "llama.cpp-2023-12"),
        ("llama.cpp", "", "2024-03-02", "llama.cpp-2024-05"),
        ("llama.cpp", "2026-08-22", "", "llama.cpp"),
    ],
)
def test_the_release_or_the_date_of_a_run_decides_the_build(tmp_path: Path, engine: str, era: str, date: str, build: str) -> None:
    columns, more = f"{COLUMNS},era,date", {"quant": "Q4_K_M" if engine == "llama.cpp" else "fp16"}
    row = PLAIN | more | {"engine": engine, "era": era, "date": date, "gpu": "H100 SXM"}
    (case,), skipped = read_cases(table(tmp_path, row, columns=columns))
    assert not skipped
    assert case.runtime.key == build


def test_a_stated_micro_batch_and_a_bench_without_sampling_are_read(tmp_path: Path) -> None:
    served, bench = one(tmp_path), one(tmp_path, note="llama-bench; n_ubatch 2048")
    assert (served.runtime.batch, bench.runtime.batch) == (512, 2048)
    assert (served.work.sampled, bench.work.sampled) == (True, False)


def test_a_row_states_places_looks_spreads_and_whether_graphs_launch_its_steps(tmp_path: Path) -> None:
    columns = f"{COLUMNS},slots,poll_passes,prompt_spread,output_spread,graphs"
    more = {
        "quant": "fp16",
        "engine": "vLLM",
        "gpu": "H100 SXM",
        "batch_or_concurrency": "9",
        "prompt_len": "512",
        "gen_len": "128",
    }
    row = PLAIN | more | {"slots": "8", "poll_passes": "30", "prompt_spread": "0.5", "output_spread": "1", "graphs": "none"}
    (case,), skipped = read_cases(table(tmp_path, row, columns=columns))
    assert not skipped
    assert case.load
    assert (case.load.users, case.load.prompt.spread, case.load.output.spread) == (9, 0.5, 1.0)
    assert (case.limits.sequences, case.limits.poll_passes, case.demand.eager) == (8, 30, True)
    (plain,), _ = read_cases(table(tmp_path, row | {"poll_passes": "", "graphs": ""}, columns=columns))
    seen, quick = predict([case, plain])
    assert seen.ttft > quick.ttft + 10 * quick.tpot  # it is not looked at for 15 steps on average


def test_adapters_of_a_run_lie_beside_its_weights() -> None:
    """h200_vllm_bench: requests for an adapter of rank 16 of Llama 3.1 8B, 84 MB."""
    plain, adapted = (
        next(case for case in built_in("h200_vllm_bench")[0] if case.row_id == name) for name in ("bench-01", "bench-13")
    )
    more = adapted.placement.devices[0].weights - plain.placement.devices[0].weights
    assert (adapted.work.adapters, more) == (1, pytest.approx(84e6, rel=0.01))
