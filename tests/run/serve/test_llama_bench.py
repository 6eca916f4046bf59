"""llama-bench driven by a plan: the same split in its own words, and its samples as a bench's figures."""

import json
import stat
import sys
from pathlib import Path

import pytest

from meshwise.errors import DoesNotFit, UserError
from meshwise.plan.ask import ServeAsk
from meshwise.run.bench.speeds import Setting
from meshwise.run.serve import llama_bench, programs
from meshwise.run.serve.ask import ServeRun
from meshwise.run.serve.deployment import deployment
from support.command import Run, refused

STAND_IN = """#!{python}
import json, sys
args = sys.argv[1:]
value = lambda flag: args[args.index(flag) + 1]
lengths = [int(n) for n in value("-d" if "-d" in args else "-p").split(",")]
print("llama.cpp says something before")
for n in lengths:
    prompt, depth = (0, n) if "-d" in args else (n, 0)
    gen = int(value("-n"))
    rate = 10.0 * n if prompt else 1000.0 / n
    print(json.dumps({{"n_prompt": prompt, "n_gen": gen, "n_depth": depth, "samples_ts": [rate] * int(value("-r"))}}))
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    file = tmp_path / "llama-bench"
    file.write_text(STAND_IN.format(python=sys.executable))
    file.chmod(file.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "m.gguf").write_bytes(b"")
    return tmp_path


def test_the_flags_of_the_plans_split_are_translated_for_llama_bench(folder: Path) -> None:
    """Lists inside one value are parted by a slash: a comma would try one after the other."""
    one = deployment(ServeAsk(model="llama-3-8b:q4_k_m", on="4xrtx4060ti-16gb", kv="q8_0", fix=("cards=3", "split=layer")))
    words = programs.llama_bench_command(one, ServeRun(engine_path=str(folder), model_file=str(folder / "m.gguf"), threads=2))
    assert words[0] == str(folder / "llama-bench")
    told = " ".join(words[3:])
    assert told == "-ngl 33 -dev CUDA0/CUDA1/CUDA2 -sm layer -ts 11/11/11 -ctk q8_0 -ctv q8_0 -fa on -t 2"


def test_every_setting_gets_the_rates_of_its_prompt_and_output(folder: Path) -> None:
    settings = [Setting(prompt=p, output=o, users=1) for p in (64, 128) for o in (8, 16)]
    assert llama_bench.runs(settings) == [
        ["-p", "64,128", "-n", "0"],
        ["-p", "0", "-n", "8", "-d", "64,128"],
        ["-p", "0", "-n", "16", "-d", "64,128"],
    ]
    found = llama_bench.timed([str(folder / "llama-bench")], settings, 2, lambda: None)
    assert [one.setting for one in found] == settings
    last = found[-1]
    assert (last.median("prefill"), last.median("decode"), len(last.runs)) == (1280, pytest.approx(7.8125), 2)


def test_it_times_one_user_of_llamacpp(folder: Path, run: Run) -> None:
    with pytest.raises(UserError, match="times one request"):
        llama_bench.runs([Setting(prompt=1, output=2, users=4)])
    told = refused(run("bench", "llama-3-8b", "--engine", "vllm", "--on", "1xh200", "--llama-bench"))
    assert "--llama-bench measures llama.cpp; this plan is for vllm" in told
    assert "--llama-bench only applies to an engine that bench starts" in refused(
        run("bench", "http://127.0.0.1:1", "--llama-bench")
    )


def test_bench_shows_its_rates_beside_the_prediction(folder: Path, run: Run) -> None:
    words = ["--engine-path", str(folder), "--model-file", str(folder / "m.gguf"), "--llama-bench", "--json"]
    done = run("bench", "llama-3-8b:q4_k_m", "--on", "cpu", "--prompt", "100", "--output", "20", "--repeats", "1", *words)
    assert done.code == 0, done.err
    told = json.loads(done.out)
    (point,) = told["points"]
    assert (told["engine"], point["decode"], point["prefill"]) == ("llama-bench", 10, 1000)
    assert point["predicted"]["decode"] > 0


def test_a_failure_of_llama_bench_is_reported(tmp_path: Path) -> None:
    with pytest.raises(DoesNotFit, match="llama-bench ended with exit code 1: error: failed to load model 'x'"):
        llama_bench.timed(
            [sys.executable, "-c", "print(\"error: failed to load model 'x'\"); raise SystemExit(1)"],
            [Setting(prompt=1, output=2, users=1)],
            1,
            lambda: None,
        )
