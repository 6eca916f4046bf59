"""Rules over single runs and pairs of them: each finds its fault in plain figures, and figures that agree raise nothing."""

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwise.audit.expected import train
from meshwise.audit.figures import Figures
from meshwise.audit.finding import Finding, percent, ranked
from meshwise.audit.logs.run import Claim, Run
from meshwise.audit.rules import across_runs, claims, one_run

LLAMA: dict[str, Any] = {
    "n_layers": 32.0,
    "d_model": 4096.0,
    "d_ff": 14336.0,
    "n_heads": 32.0,
    "n_kv_heads": 8.0,
    "vocab": 128256.0,
    "params": 8.03e9,
}


def figures(source: str = "x", ranks: tuple[float, ...] = (), texts: dict[str, str] | None = None, **numbers: float) -> Figures:
    words = {"gpu": "h100-sxm"} | (texts or {})
    return Figures(Run(where="line 1", numbers=numbers, texts=words, ranks={"tokens_per_second": ranks} if ranks else {}), source)


def told(f: Figures) -> dict[str, Finding]:
    return {one.rule: one for rule in one_run.RULES for one in rule(f)}


@given(
    devices=st.sampled_from([1, 2, 8, 64, 384]),
    mbs=st.integers(1, 8),
    steps=st.integers(1, 64),
    seq=st.sampled_from([512, 2048, 8192]),
    share=st.floats(0.02, 0.6),
)
def test_figures_that_follow_from_each_other_raise_nothing(devices: int, mbs: int, steps: int, seq: int, share: float):
    batch = devices * mbs * steps
    bare = figures(n_gpus=devices, seq_len=seq, global_batch_seqs=batch, **LLAMA)
    rate = share * 989.4e12 * devices / bare.formulas["6N"]
    f = figures(
        n_gpus=devices,
        dp=devices,
        tp=1.0,
        pp=1.0,
        micro_batch=mbs,
        grad_accum=steps,
        global_batch_seqs=batch,
        seq_len=seq,
        tokens_per_step=batch * seq,
        seconds=batch * seq / rate,
        tokens_per_second=rate,
        tflops=share * 989.4e12,
        mfu=share,
        loss=math.log(128256) + 0.2,
        loss_step=0.0,
        memory=60e9,
        ranks=(rate / devices,) * devices,
        **LLAMA,
    )
    assert told(f) == {}
    assert f.used[0] == "6N"
    assert f.mfu["6N"] == pytest.approx(share)


def test_a_rate_of_one_device_beside_the_step_of_all_is_told():
    one = told(figures(n_gpus=8, seq_len=4096, global_batch_seqs=64, seconds=4.0, tokens_per_second=8192))["step x throughput"]
    assert "the rate is one device's" in one.words


def test_a_step_in_milliseconds_is_told():
    one = told(figures(n_gpus=8, seq_len=4096, global_batch_seqs=64, seconds=4000.0, tokens_per_second=65536))[
        "step x throughput"
    ]
    assert "milliseconds" in one.words


def test_ranks_that_each_print_the_total_are_told():
    one = told(figures(n_gpus=4, tokens_per_second=1000.0, ranks=(1000.0, 1001.0, 999.0, 1000.0)))["ranks and total"]
    assert one.words == "each rank prints the total"


def test_ranks_far_apart_are_told():
    assert "balance" in told(figures(n_gpus=2, tokens_per_second=300.0, ranks=(200.0, 100.0)))


def test_samples_beside_a_batch_need_no_length():
    assert "step x throughput" in told(figures(samples_per_second=10.0, seconds=1.0, global_batch_seqs=64.0))


@pytest.mark.parametrize(
    ("numbers", "rule"),
    [
        ({"n_gpus": 64.0, "dp": 4.0, "tp": 8.0, "pp": 4.0}, "layout"),
        ({"n_gpus": 60.0, "tp": 8.0, "pp": 4.0}, "layout"),
        ({"n_gpus": 8.0, "dp": 8.0, "micro_batch": 4.0, "global_batch_seqs": 100.0}, "batch"),
        ({"n_gpus": 8.0, "dp": 8.0, "micro_batch": 4.0, "grad_accum": 2.0, "global_batch_seqs": 32.0}, "batch"),
        ({"n_layers": 12.0, "pp": 16.0, "seconds": 1.0}, "layers"),
        ({"n_heads": 20.0, "tp": 8.0}, "layers"),
        ({"n_layers": 10.0, "d_model": 14336.0, "params": 18e9}, "size"),
        ({"loss": 2.0, "loss_step": 0.0, "vocab": 50257.0}, "first loss"),
        ({"loss": 0.5, "loss_step": 0.0}, "first loss"),
        ({"loss": 60.0, "loss_step": 1.0, "vocab": 50257.0}, "first loss"),
        ({"memory": 120e9}, "memory"),
        ({"tflops": 400e12, "mfu": 0.6}, "MFU"),
        ({"forward_seconds": 0.045, "seconds": 7.5}, "forward and step"),
        ({"nans": 3.0}, "NaN"),
        ({"decode": 900.0, "model_bytes": 16e9, "users": 1.0, "n_gpus": 1.0}, "above the chip"),
        ({"decode": 90.0, "prefill": 40.0, "prompt": 512.0}, "prompt and generation"),
        ({"n_gpus": 8.0, "tokens_per_second": 300_000.0, **LLAMA}, "above the chip"),
    ],
)
def test_a_fault_is_found(numbers: dict[str, Any], rule: str):
    assert rule in told(figures(**numbers))


@pytest.mark.parametrize(
    "numbers",
    [
        {"loss": 2.0, "loss_step": 5000.0, "vocab": 50257.0},
        {"loss": 10.9, "loss_step": 0.0, "vocab": 50257.0},
        {"n_layers": 61.0, "pp": 16.0},
        {"decode": 150.0, "model_bytes": 16e9, "users": 1.0, "n_gpus": 1.0},
        {"n_gpus": 8.0, "tokens_per_second": 90_000.0, **LLAMA},
        {"memory": 79e9},
    ],
)
def test_what_may_be_is_let_be(numbers: dict[str, Any]):
    assert told(figures(**numbers)) == {}


def test_a_loss_of_another_first_step_is_as_sure_as_it_is_low():
    assert told(figures(loss=7.5, loss_step=0.0, vocab=50257.0))["first loss"].sure == "likely"
    assert told(figures(loss=3.0, loss_step=0.0, vocab=50257.0))["first loss"].sure == "sure"


def test_printed_tflops_of_all_devices_are_told_as_that():
    bare = figures(n_gpus=8, seq_len=4096, global_batch_seqs=64, seconds=10.0, **LLAMA)
    f = figures(n_gpus=8, seq_len=4096, global_batch_seqs=64, seconds=10.0, tflops=8 * bare.tflops["6N"], **LLAMA)
    assert "it is of all devices" in told(f)["printed FLOPs"].words


def test_the_megatron_formula_is_eq_3():
    """arXiv:2104.04473, eq. 3: 96 B s l h^2 (1 + s/6h + V/16lh)."""
    s, layers, h, v = 2048.0, 96.0, 12288.0, 51200.0
    f = figures(n_layers=layers, d_model=h, vocab=v, seq_len=s)
    assert f.formulas["Megatron + recompute"] == pytest.approx(96 * layers * h**2 * (1 + s / (6 * h) + v / (16 * layers * h)))


def test_a_price_makes_a_cost_of_tokens():
    f = figures(n_gpus=8, tokens_per_second=100_000.0)
    assert f.chip is not None
    assert f.chip.rent
    assert f.dollars == pytest.approx(8 * f.chip.rent / 100_000 * 1e6)


def many(rows: list[dict[str, float]], **shared: float) -> list[Figures]:
    return [
        Figures(Run(where=f"line {i}", numbers=shared | row, texts={"gpu": "a100-80gb"}, section="t"), "x")
        for i, row in enumerate(rows, 1)
    ]


def pairs(rows: list[Figures]) -> list[Finding]:
    return [one for rule in across_runs.RULES for one in rule(rows)]


def test_memory_that_grows_with_the_micro_batch_is_in_line():
    rows = many(
        [{"micro_batch": 1.0, "memory": 30e9}, {"micro_batch": 2.0, "memory": 37e9}, {"micro_batch": 4.0, "memory": 49e9}], dp=4.0
    )
    assert pairs(rows) == []


def test_a_batch_in_proportion_to_its_time_is_in_line():
    shared = {"dp": 4.0, "tp": 8.0, "pp": 12.0, "micro_batch": 4.0}
    rows = many([{"global_batch_seqs": 1568.0, "seconds": 92.75}, {"global_batch_seqs": 2048.0, "seconds": 117.07}], **shared)
    assert pairs(rows) == []  # BLOOM notes, 02-25


def test_strong_and_weak_scaling_are_fair_and_neither_is_not():
    strong = many([{"n_gpus": n, "global_batch_seqs": 512.0, "seconds": 1.0 / n} for n in (8.0, 16.0, 32.0)])
    weak = many([{"n_gpus": n, "global_batch_seqs": 64 * n, "seconds": 1.0} for n in (8.0, 16.0, 32.0)])
    neither = many(
        [
            {"n_gpus": 8.0, "global_batch_seqs": 512.0, "seconds": 1.0},
            {"n_gpus": 16.0, "global_batch_seqs": 128.0, "seconds": 0.2},
        ]
    )
    assert pairs(strong) == pairs(weak) == []
    assert [one.rule for one in pairs(neither)] == ["unlike batches"]


def claimed(kind: str, *values: float, about: tuple[str, ...] = ()) -> tuple[str, Claim]:
    return "x", Claim(kind=kind, where="line 9", text="so it says", values=values, about=about)  # pyright: ignore[reportArgumentType]


def test_a_scaling_efficiency_that_is_not_is_told_with_the_one_that_is():
    runs = many([{"n_gpus": 2.0, "tokens_per_second": 4000.0}, {"n_gpus": 8.0, "tokens_per_second": 8000.0}])
    found = list(claims.efficiency([claimed("efficiency", 0.9)], runs))
    assert found[0].sure == "sure"
    assert "it is 50%" in found[0].words


def test_an_efficiency_without_rates_is_to_be_looked_at():
    assert [one.sure for one in claims.efficiency([claimed("efficiency", 0.9)], [])] == ["look"]


def test_a_spread_beyond_what_is_claimed_is_told():
    runs = [figures(ranks=(100.0, 80.0, 120.0))]
    assert len(list(claims.spreads([claimed("spread", 0.06)], runs))) == 1


def test_products_are_worked_out():
    assert list(claims.products([claimed("product", 56.3e9, 8192, 8192, 3.5, 3, 80)], [])) == []  # Llama 3 70B's FFW parameters
    (one,) = claims.products([claimed("product", 2048, 128, 16, 8)], [])
    assert "the factor 8 is missing" in one.words


@pytest.mark.parametrize(
    ("short", "long", "wrong"),
    [
        ("rpc", "remote procedure calls", False),
        ("rpc", "realtime communication protocol", True),
        ("gpu", "graphics processing units", False),
        ("xyz", "anything at all", False),
    ],
)
def test_abbreviations_are_known_by_every_reading_in_use(short: str, long: str, wrong: bool):
    assert bool(list(claims.meanings([claimed("meaning", about=(short, long))], []))) is wrong


def test_many_findings_of_a_kind_are_told_as_one():
    each = [Finding(rule="r", sure="look", where=(f"x: line {i}",), words=f"a loss of {i}", arithmetic="") for i in range(5)]
    (one,) = ranked(each)
    assert len(one.where) == 5
    assert "5 such" in one.words


def test_little_shares_keep_two_digits():
    assert [percent(share) for share in (0.348, 0.0015, 0.000026)] == ["34.8%", "0.15%", "0.0026%"]


def test_a_run_that_states_too_little_is_not_priced_and_says_why():
    found, missing = train.expectations([figures(n_gpus=8.0, seconds=1.0)])
    assert found == []
    assert missing == {"d_model is not stated": 1}


def test_a_lone_run_ten_times_slower_than_expected_is_told():
    shared: dict[str, Any] = {
        "n_gpus": 8.0,
        "dp": 8.0,
        "tp": 1.0,
        "pp": 1.0,
        "micro_batch": 1.0,
        "global_batch_seqs": 256.0,
        "seq_len": 4096.0,
    }
    fast, slow = (figures(seconds=seconds, gpus_per_node=8.0, **shared, **LLAMA) for seconds in (13.0, 130.0))
    priced, _ = train.expectations([fast])
    assert list(train.compared(priced, {})) == []
    priced, _ = train.expectations([slow])
    assert [one.rule for one in train.compared(priced, {"x": "A+"})] == ["planner"]


def test_a_column_of_scaling_efficiencies_is_worked_out():
    rows = [
        {"n_gpus": n, "tokens_per_second": rate, "efficiency": e}
        for n, rate, e in ((8.0, 8e3, 1.0), (16.0, 15.2e3, 0.95), (32.0, 20e3, 0.9))
    ]
    (one,) = across_runs.stated_efficiency(many(rows))
    assert one.where == ("x: line 3",)
    assert "it is 62%" in one.words
