"""Predictions for served models: speeds far from them are found, and runs that state too little are counted."""

from pathlib import Path
from typing import Any

import pytest

from meshwise import api
from meshwise.audit import serve
from support.audits import figures

TEXTS = {"chip": "rtx3090", "model": "llama-3-8b", "weights": "Q4_K_M", "engine": "llama.cpp"}


def predict(decode: float) -> serve.ServePrediction:
    (one,), _ = serve.predict_runs([figures(texts=TEXTS, devices=1.0, users=1.0, output=128.0, decode=decode)])
    return one


def test_a_speed_near_the_prediction_raises_nothing_and_one_far_from_it_is_found():
    expected = predict(decode=100.0).decode
    assert list(serve.compare([predict(decode=expected)])) == []
    (slow,) = serve.compare([predict(decode=expected / 5)])
    assert slow.message == "generation is 5.0 times slower than predicted"
    (fast,) = serve.compare([predict(decode=2 * expected)])
    assert fast.message == "generation is 2.0 times faster than predicted"


def test_a_load_is_predicted_with_its_latencies():
    """A rate of requests, or as many as the engine admits, is read as `validate` reads it."""
    vllm = {"chip": "h100-sxm", "model": "llama-3.1-8b", "weights": "fp8", "engine": "vllm"}
    lengths: dict[str, Any] = {"prompt": 512.0, "output": 128.0, "devices": 1.0}
    (at_rate,), _ = serve.predict_runs([figures(texts=vllm, **lengths, rate=4.0, decode=512.0, ttft=0.05, tpot=5.0)])
    assert at_rate.decode == pytest.approx(4 * 128)
    assert 0 < at_rate.ttft < 0.2
    assert [finding.message.split(" is ")[0] for finding in serve.compare([at_rate])] == ["each next token"]
    (most,), _ = serve.predict_runs([figures(texts=vllm | {"users": "max"}, **lengths, decode=5000.0)])
    assert most.decode > 8 * at_rate.decode
    (each,), _ = serve.predict_runs([figures(texts=vllm, **lengths, users=16.0, each=100.0)])
    assert each.decode > 1000


def test_a_table_of_a_load_is_read(tmp_path: Path):
    file = tmp_path / "bench.csv"
    header = "model,quant,engine,gpu,n_gpus,prompt_len,gen_len,batch_or_concurrency,requests_per_s,decode_tok_s,ttft_ms,tpot_ms"
    rows = ["llama-3.1-8b,fp8,vllm,h100-sxm,1,512,128,,4,512,20,6", "llama-3.1-8b,fp8,vllm,h100-sxm,1,512,128,max,,6000,,"]
    file.write_text("\n".join([header, *rows]) + "\n")
    first, second = api.audit(file).rows()
    assert (first["request_rate"], first["ttft"], first["tpot"]) == (4, pytest.approx(0.02), pytest.approx(0.006))
    assert first["expected_decode"] == pytest.approx(512)
    assert first["expected_ttft"] > 0
    assert second["expected_decode"] > 2000


def test_a_run_without_a_chip_is_counted_with_the_reason():
    found, missing = serve.predict_runs([figures(texts={"chip": "", "model": "llama-3-8b"}, decode=50.0)])
    assert found == []
    assert missing == {"the chip is not stated": 1}
