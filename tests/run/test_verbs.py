"""The verbs that run and measure, as a notebook calls them: `meshwise.run`, `bench`, `probe`, `generate` and `make_gguf`."""

import inspect
from pathlib import Path

import pytest

import meshwise as mw
from meshwise import api
from meshwise.catalogue import files
from meshwise.errors import UserError
from meshwise.run.train.dry_run import DryRun
from meshwise.run.train.results import SweepResult, TrainResult
from support.engines import script
from support.probe_rows import TRUTH, h200_rows
from support.scripted_endpoint import Script, serving


def test_every_verb_is_documented_and_called_by_its_name() -> None:
    for name in ("run", "bench", "probe"):
        verb = getattr(mw, name)
        assert inspect.signature(verb).parameters
        assert (getattr(api, name).__doc__ or "").strip()


def test_a_plan_is_run_as_it_is_and_keywords_are_the_flags() -> None:
    plan = mw.plan("llama-debug", on="1x4xcpu", batch="8x64", framework="meshwise", fix="tp=2,dp_shard=2")
    found = mw.run(plan, dry_run=True)
    assert isinstance(found, DryRun)
    assert (found.settings.layout.tp, found.settings.layout.dp_shard, found.settings.batch) == (2, 2, 8)
    other = mw.run("llama-debug", tp=2, batch=16, seq="1k", dry_run=True)
    assert isinstance(other, DryRun)
    assert (other.settings.batch, other.settings.seq, other.settings.layout.tp) == (16, 1024, 2)


def test_an_unknown_keyword_is_refused_with_the_nearest() -> None:
    with pytest.raises(UserError, match=r"TrainRun has no 'stepz'; did you mean 'steps'\?"):
        mw.run("llama-debug", stepz=3)
    with pytest.raises(UserError, match=r"ServeRun has no 'prot'; did you mean 'port'\?"):
        mw.run("model.gguf", prot=3)
    with pytest.raises(UserError, match="BenchAsk has no"):
        mw.bench("http://127.0.0.1:1", user=3)


@pytest.mark.slow
def test_a_run_returns_its_measurements_and_its_report(tmp_path: Path) -> None:
    lines: list[str] = []
    steps: list[tuple[float, float]] = []
    out = tmp_path / "run"
    found = mw.run(
        "llama-debug", device="cpu", steps=3, seq=32, out=str(out), say=lines.append,
        progress=lambda what, done, total: steps.append((done, total)),
    )  # fmt: skip
    assert isinstance(found, TrainResult)
    assert [row["step"] for row in found.rows()] == [0, 1, 2]
    assert found.rows()[-1]["loss"] < found.rows()[0]["loss"]
    assert found.to_json()["n_gpus"] == 1
    assert found.forecast
    assert found.text.startswith("predicted and measured\n")
    assert lines[-1].startswith(f"\n{found.text}\n\nsaved in {out}: ")
    assert [line.split("  ")[0] for line in lines if line.startswith("step")] == ["step 1/3", "step 2/3", "step 3/3"]
    assert steps == [(0, 3), (1, 3), (2, 3), (3, 3)]


@pytest.mark.slow
def test_a_sweep_returns_an_outcome_for_each_combination(tmp_path: Path) -> None:
    found = mw.run("llama-debug", device="cpu", sweep="mbs=4,8", steps=2, seq=32, out=str(tmp_path), say=lambda line: None)
    assert isinstance(found, SweepResult)
    assert [(row["micro_batch"], row["outcome"]) for row in found.rows()] == [(4, "ok"), (8, "ok")]


def test_an_endpoint_is_measured() -> None:
    done: list[float] = []
    with serving(Script(gap=0.002).serve) as port:
        found = mw.bench(
            f"http://127.0.0.1:{port}", prompt=20, output=8, users=[1, 2], repeats=1,
            progress=lambda what, now, total: done.append(now / total),
        )  # fmt: skip
    found.check()
    assert [(one["users"], one["decode"] > 0) for one in found.points] == [(1, True), (2, True)]
    assert [row["users"] for row in found.rows()] == [1, 2]
    assert [row["decode_tok_s"] != "" for row in found.measurements()] == [True, True]
    assert done == [0.25, 0.5, 0.75, 1.0]


def test_a_serving_plan_is_measured_as_it_is(tmp_path: Path) -> None:
    """With a stand-in for llama-bench, which prints a rate for what it is asked."""
    script(
        tmp_path, "llama-bench",
        "gen = int(sys.argv[sys.argv.index('-n') + 1]); prompt = 0 if gen else 64; depth = 64 if gen else 0\n"
        "print('{\"n_prompt\": %d, \"n_gen\": %d, \"n_depth\": %d, \"samples_ts\": [20.0]}' % (prompt, gen, depth))",
    )  # fmt: skip
    (tmp_path / "m.gguf").write_bytes(b"")
    plan = mw.serve("llama-3-8b:q4_k_m", on="cpu", context="1k", prompt=64, output=8)
    model = str(tmp_path / "m.gguf")
    found = mw.bench(plan, llama_bench=True, repeats=1, engine_path=str(tmp_path), model_file=model)
    assert [(one["decode"], one["predicted"]["decode"] > 0) for one in found.points] == [(20.0, True)]
    with pytest.raises(UserError, match="--on does not apply to a plan"):
        mw.bench(plan, on="cpu")


def test_rows_of_a_probe_are_installed_and_shown(home: Path, tmp_path: Path) -> None:
    from meshwise.run.probe.store import jsonl

    (tmp_path / "rows.jsonl").write_text(jsonl(h200_rows(TRUTH)))
    found = mw.probe(read=str(tmp_path / "rows.jsonl"))
    assert list(found.machines) == ["here"]
    assert found.folder == home
    files.clear()
    assert mw.probe(show=True).to_json() == found.to_json()


def test_a_gguf_file_is_written(tmp_path: Path) -> None:
    made = api.make_gguf("smollm2-135m", tmp_path / "tiny.gguf", layers=2, header_only=True)
    assert len(made.model.layers) == 2
    assert (tmp_path / "tiny.gguf").stat().st_size > 1e6
    with pytest.raises(UserError, match=r"ends in \.gguf"):
        api.make_gguf("smollm2-135m", tmp_path / "tiny.bin")


def test_text_needs_weights() -> None:
    with pytest.raises(UserError, match=r"no such folder or \.safetensors file"):
        api.generate("llama-debug", weights="nowhere")
