"""The meaning of columns about load and rates, and the names that people write for models, formats and backends."""

import math

import pytest

from meshwise.errors import UserError
from meshwise.runs.serve import rates
from meshwise.runs.serve.case import ServeCase, case_of
from meshwise.runs.serve.names import backend_of, format_in, model_of
from meshwise.runs.serve.predict import predict
from meshwise.runs.table import run_of
from support.every import check_every

ROW = {
    "model": "Llama 3.1 8B Instruct",
    "quant": "FP8",
    "engine": "vLLM",
    "gpu": "H100 SXM 80GB",
    "n_gpus": "1",
    "prompt_len": "1024",
    "gen_len": "256",
    "batch_or_concurrency": "32",
    "decode_tok_s": "3000",
}


def case(**changed: str) -> ServeCase:
    return case_of(run_of(ROW | changed), "row")


def test_rates_of_one_device_or_one_user_become_those_of_all() -> None:
    def check(changed: dict[str, str], expected: float) -> None:
        assert case(**changed).decode == pytest.approx(expected)

    check_every(
        check,
        [
            ({}, 3000),
            ({"n_gpus": "2", "rate_of": "PER-GPU output tokens/s as stated"}, 6000),
            ({"n_gpus": "2", "note": "8 MiB per GPU; one token per user is drafted"}, 3000),
            ({"rate_of": "per user"}, 96_000),
            ({"decode_tok_s": "40-50"}, 45),
            ({"decode_tok_s": "", "tok_s_per_user": "90"}, 2880),
        ],
    )
    with pytest.raises(UserError, match="decode_tok_s is 'fast', not a number"):
        case(decode_tok_s="fast")


def test_a_server_under_load_is_scored_with_prompts_and_a_single_request_without() -> None:
    loaded, alone = case(), case(batch_or_concurrency="1")
    assert loaded.load
    assert (loaded.load.users, loaded.load.prompt.mean) == (32, 1024)
    assert alone.load is None
    assert case(note="llama-batched-bench, decode-only").load is None
    assert case(engine="transformers", quant="bf16").load is None  # it starts all requests together
    together, steps = predict([loaded, case(note="decode-only")])
    assert together.decode < steps.decode


def test_max_runs_as_many_requests_as_the_engine_admits() -> None:
    full = case(engine="TensorRT-LLM", batch_or_concurrency="max (all requests queued)", note="requests: 1024/256 3000, 1/1 7")
    assert full.most
    assert full.load
    assert full.load.requests == 3000
    assert 300 < full.limits.running(full.load) < 1000
    (found,) = predict([full])
    assert found.decode > 3000


def test_times_to_and_between_tokens_are_predicted_where_they_are_stated() -> None:
    (found,) = predict([case(ttft_ms="200", tpot_ms="11")])
    assert 0.01 < found.ttft < 1
    assert 0.002 < found.tpot < 0.05
    assert math.isnan(case().ttft)


def test_depth_is_read_from_its_column_or_the_note() -> None:
    deep = case(batch_or_concurrency="1", note="tg32 @ d32768", prompt_len="32768", gen_len="32")
    assert (deep.work.depth, deep.work.prompt, deep.work.output) == (32768, 0, 32)
    prompt = case(depth="4096", prompt_len="512", gen_len="0", decode_tok_s="", prefill_tok_s="9000")
    assert (prompt.work.depth, prompt.work.prompt) == (4096, 512)
    shallow = case(depth="0", prompt_len="512", gen_len="0", decode_tok_s="", prefill_tok_s="9000")
    assert predict([prompt])[0].prefill < predict([shallow])[0].prefill


def test_models_are_found_by_the_names_of_files_and_releases() -> None:
    def check(name: str, preset: str) -> None:
        assert model_of(name).name == preset

    check_every(
        check,
        [
            ("Llama 3.1 8B Instruct", "llama-3.1-8b"),
            ("Qwen3-30B-A3B-Instruct-2507-UD-Q4_K_XL", "qwen3-30b-a3b"),
            ("gpt-oss-120b-mxfp4", "gpt-oss-120b"),
            ("gemma-3-27b-it-Q8_0", "gemma-3-27b"),
            ("Llama-3.3-70B-Instruct-Q4_K_M-00001-of-00002.gguf".removesuffix(".gguf"), "llama-3.3-70b"),
        ],
    )


def test_formats_backends_and_bits_of_a_file() -> None:
    assert format_in("Qwen3-30B-A3B-UD-Q4_K_XL") == "UD-Q4_K_XL"
    assert format_in("gpt-oss-20b-MXFP4") == "MXFP4"
    assert backend_of(run_of({"engine": "llama.cpp RPC ROCm,RPC", "note": "env rocm6_4_4-rocwmma"})) == "rocm-wmma"
    assert backend_of(run_of({"engine": "llama.cpp", "note": "env vulkan_radv"})) == "vulkan"
    assert backend_of(run_of({"engine": "llama.cpp"})) == ""
    row = {"engine": "llama.cpp", "gpu": "Radeon 8060S (Strix Halo 128GB)", "quant": "UD-Q4_K_XL", "batch_or_concurrency": "1"}
    wide, usual = case(**row, bits_per_weight="5.5"), case(**row)
    assert wide.weights.bits_per_weight == pytest.approx(5.5, rel=0.001)
    assert wide.chip.key == "ryzen-ai-max-395"
    assert predict([wide])[0].decode < predict([usual])[0].decode


def test_attention_dp_places_experts_apart() -> None:
    row = {"model": "DeepSeek-V3", "engine": "SGLang", "gpu": "H200", "n_gpus": "8", "batch_or_concurrency": "256"}
    apart, tensor = case(**row, note="EP8, enable_attention_dp"), case(**row)
    assert apart.placement.apart
    assert apart.limits.cache > 2 * tensor.limits.cache


def test_ranges_and_users() -> None:
    assert run_of({"decode_tok_s": "1,200"}).number("decode") == 1200
    assert run_of({"decode_tok_s": "10 to 20"}).number("decode") == 15
    assert rates.users(run_of({"batch_or_concurrency": "max"})) == 1
    with pytest.raises(UserError, match="not a whole number"):
        rates.users(run_of({"batch_or_concurrency": "2.5"}))
