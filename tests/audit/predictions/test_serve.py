"""Predictions for served models: speeds far from them are found, and runs that state too little are counted."""

from meshwise.audit.predictions import serve
from support.audits import figures

TEXTS = {"gpu": "rtx3090", "model": "llama-3-8b", "quant": "Q4_K_M", "engine": "llama.cpp"}


def predict(decode: float) -> serve.ServePrediction:
    (one,), _ = serve.predict_runs([figures(texts=TEXTS, n_gpus=1.0, users=1.0, output=128.0, decode=decode)])
    return one


def test_a_speed_near_the_prediction_raises_nothing_and_one_far_from_it_is_found():
    expected = predict(decode=100.0).decode
    assert list(serve.compare([predict(decode=expected)])) == []
    (slow,) = serve.compare([predict(decode=expected / 5)])
    assert slow.message == "generation is 5.0 times slower than predicted"
    (fast,) = serve.compare([predict(decode=2 * expected)])
    assert fast.message == "generation is 2.0 times faster than predicted"


def test_a_run_without_a_chip_is_counted_with_the_reason():
    found, missing = serve.predict_runs([figures(texts={"gpu": "", "model": "llama-3-8b"}, decode=50.0)])
    assert found == []
    assert missing == {"the chip is not stated": 1}
