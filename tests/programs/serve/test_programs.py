"""Serving plans are written in the words of each engine and read back as the same layout."""

import json
import re
from typing import Any

import pytest
import yaml

from meshwise.audit.check.ask import CheckAsk
from meshwise.audit.check.judge import check
from meshwise.audit.check.verdict import Verdict
from meshwise.catalogue.files import BUILT_IN
from meshwise.errors import UserError
from meshwise.plan.ask import ServeAsk
from meshwise.plan.serve.plan import ServePlan, make
from meshwise.programs.engines import commands
from meshwise.programs.program import programs
from meshwise.programs.read.files import read_sources
from meshwise.programs.serve import lengths
from meshwise.programs.source import Source
from meshwise.programs.write import export
from support.every import check_every


def plan(**words: Any) -> ServePlan:
    return make(
        ServeAsk(**({"model": "llama-3.3-70b:bf16", "on": "8xh100-sxm", "users": 16, "context": 16384} | words)), commands
    )


PLANS: dict[str, dict[str, Any]] = {
    "tp": {"fix": ("tp=8",)},
    "tp x pp": {"fix": ("tp=4", "pp=2")},
    "copies": {"model": "llama-3-8b:fp8", "kv": "fp8", "context": 8192, "users": 64, "fix": ("tp=2", "pp=1", "replicas=4")},
    "hosts": {"model": "llama-3.1-405b:fp8", "on": "2x8xh100-sxm", "fix": ("tp=8", "pp=2")},
    "half": {"model": "llama-3-8b:fp16", "context": 8192, "fix": ("tp=1", "pp=1", "replicas=1")},
    "experts apart": {"model": "qwen3-30b-a3b", "context": 8192, "users": 512, "fix": ("ep=8",)},
    "drafts": {"model": "deepseek-v3", "on": "8xh200", "draft": 2, "accept": 0.7, "fix": ("tp=8", "ep=1")},
    "drafts of another model": {"draft": 3, "accept": 0.7, "fix": ("tp=8",)},
}
TENSOR = ("vllm", "sglang", "tensorrt-llm", "dynamo")


def test_a_plan_comes_back_from_every_engine_that_can_say_it() -> None:
    refused: list[tuple[str, str]] = []

    made_plans = {name: plan(**words) for name, words in PLANS.items()}

    def back(name: str, engine: str) -> None:
        made = made_plans[name]
        best = made.choices[0]
        try:
            written = export(made, engine, "leaderworkerset" if best.hosts > 1 and engine != "dynamo" else "")
        except UserError:
            refused.append((engine, name))
            return
        facts = read_sources([Source(file, text) for file, text in written.files.items()], {}).facts
        said = [facts.whole(fact, 1) for fact in ("tp", "pp", "replicas", "copy_limit", "context")]
        assert said == [best.tp, best.pp, best.replicas, made.ask.users // best.replicas, made.context]
        assert facts.value("kv") == made.ask.kv
        assert bool(facts.value("attention_dp")) == ("attention dp" in best.name)
        assert facts.whole("draft") == made.ask.draft
        assert facts.adding(lengths.totals(facts)).whole("users") == made.ask.users
        assert facts.whole("copy_tokens") == 8192 * (best.tp if "attention dp" in best.name else 1)
        assert facts.whole("nodes", 1) == best.hosts

    check_every(back, [(name, engine) for name in PLANS for engine in TENSOR])
    assert refused == [("tensorrt-llm", "copies"), ("tensorrt-llm", "hosts")]


def test_llama_cpp_and_ollama_say_their_plans() -> None:
    made = plan(
        model="llama-3-8b:q4_k_m", on="2xrtx3090", users=4, context=8192, engine="llama.cpp", fix=("split=layer", "cards=2")
    )
    written = export(made, "llama.cpp")
    facts = read_sources([Source("serve.sh", written.files["serve.sh"])], {}).facts
    assert [facts.value(name) for name in ("users", "context", "split", "kv", "flash")] == [4, 8192, "layer", "f16", True]
    preset = written.files["models.ini"]
    assert preset.endswith(
        "version = 1\n\n[llama-3-8b-Q4_K_M]\nmodel = llama-3-8b-Q4_K_M.gguf\nn-gpu-layers = 33\nsplit-mode = layer\nctx-size = 32768\n"
        "parallel = 4\nflash-attn = on\nload-on-startup = true\n"
    )
    assert "num_ctx 8192" in export(made, "ollama").files["Modelfile"]


def test_a_program_refuses_a_plan_that_it_cannot_run() -> None:
    gguf = plan(model="llama-3-8b:q4_k_m", on="2xrtx3090", users=1, engine="llama.cpp")
    with pytest.raises(
        UserError, match=r"vLLM runs checkpoints of the hub, and the plan, made for llama\.cpp, has Q4_K_M weights"
    ):
        export(gguf, "vllm")
    with pytest.raises(UserError, match=r"llama\.cpp runs GGUF files, and the plan, made for vllm, has bf16 weights"):
        export(plan(fix=("tp=8",)), "llama.cpp")


def test_pools_of_prompts_and_outputs_are_one_deployment_of_dynamo() -> None:
    made = plan(model="llama-3.3-70b:fp8", users=64, context=8192, fix=("prefill=1", "tp=2", "replicas=3"))
    document = yaml.safe_load(export(made, "dynamo").files["deployment.yaml"])
    workers = {name: one for name, one in document["spec"]["services"].items() if one["componentType"] == "worker"}
    roles = {one["subComponentType"]: one for one in workers.values()}
    assert {role: one["replicas"] for role, one in roles.items()} == {"prefill": 1, "decode": 3}
    assert "--is-prefill-worker" in roles["prefill"]["extraPodSpec"]["mainContainer"]["args"]
    with pytest.raises(UserError, match="--to dynamo writes them as one deployment"):
        export(made, "vllm")


def verdict(tmp_path: Any, text: str, on: str, **words: Any) -> Verdict:
    file = tmp_path / "serve.sh"
    file.write_text(text)
    return check([str(file)], CheckAsk(on=on, **words))


def test_check_finds_a_faster_layout_and_writes_it_into_the_file(tmp_path: Any) -> None:
    text = "TP=4\nvllm serve meta-llama/Llama-3.3-70B-Instruct -tp $TP -pp 2 --max-model-len 16384 --max-num-seqs 16\n"
    found = verdict(tmp_path, text, "8xh100-sxm")
    assert (found.fits, found.code, found.best.axes) == (True, 0, (8, 1, 1, 0))
    assert list(found.patched.values()) == [text.replace("TP=4", "TP=8").replace("-pp 2", "-pp 1")]
    json.dumps(found.to_json())


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        ("-tp 3 --max-num-seqs 4", "tp 3 does not divide the 64 attention heads"),
        ("-tp 8 --max-model-len 1M", "is longer than the 131,072"),
        ("-tp 8 --gpu-memory-utilization 9", "expected above 0 and at most 1"),
        ("-tp 8 --enable-expert-parallel", "llama-3.3-70b has none"),
        ("-tp 8 -pp 4", "it asks for 32 devices"),
    ],
)
def test_what_cannot_start_is_said(tmp_path: Any, flags: str, text: str) -> None:
    found = verdict(tmp_path, f"vllm serve meta-llama/Llama-3.3-70B-Instruct {flags}\n", "8xh100-sxm")
    assert found.code == 1
    assert any(text in finding.message for finding in found.findings), [finding.message for finding in found.findings]


def test_a_model_that_does_not_fit_is_said(tmp_path: Any) -> None:
    found = verdict(tmp_path, "vllm serve meta-llama/Llama-3.3-70B-Instruct -tp 1 --max-num-seqs 1\n", "1xh100-sxm")
    assert (found.fits, found.code) == (False, 1)
    assert found.own.peak > found.own.capacity


def test_the_most_requests_at_a_time_need_no_whole_context_each(tmp_path: Any) -> None:
    """A paged cache starts with room for one; llama.cpp reserves all of its slots."""
    paged = verdict(
        tmp_path, "vllm serve meta-llama/Llama-3.3-70B-Instruct -tp 8 --max-model-len 32768 --max-num-seqs 4096\n", "8xh100-sxm"
    )
    assert (paged.fits, paged.code) == (True, 0)
    assert any("requests of 512 prompt + 128 output tokens, of at most 4,096 at a time" in note for note in paged.notes)
    slots = "llama-server -m Llama-3.3-70B-Instruct-Q4_K_M.gguf -ngl 99 -c 524288 -np 64 -fa on\n"
    assert verdict(tmp_path, slots, "2xrtx3090").code == 1


LAUNCHES = {
    "vllm": "vllm serve meta-llama/Llama-3.3-70B-Instruct -tp 8 --max-num-seqs 64 --max-model-len 8192\n",
    "sglang": "python -m sglang.launch_server --model-path meta-llama/Llama-3.3-70B-Instruct --tp 8 --max-running-requests 64\n",
    "tensorrt-llm": "trtllm-serve meta-llama/Llama-3.3-70B-Instruct --tp_size 8 --max_batch_size 64 --max_seq_len 8192\n",
}


def test_a_file_is_predicted_by_its_own_engine_as_serve_predicts_it(tmp_path: Any) -> None:
    """One definition of throughput: what `check` says about a file is what `serve` plans for the same engine, layout and load."""

    def same(engine: str) -> None:
        found = verdict(tmp_path, LAUNCHES[engine], "8xh100-sxm")
        made = plan(engine=engine, users=64, context=8192, fix=("tp=8",)).best
        assert f"--engine {engine}" in found.plan_command
        assert [found.own.throughput, found.own.per_user, found.own.ttft] == pytest.approx(
            [made.throughput, made.per_user, made.ttft.p50], rel=0.02
        )
        assert "64 users at a time, 512 prompt + 128 output tokens" in found.own.load

    check_every(same, [(engine,) for engine in LAUNCHES])


def test_a_load_can_be_stated(tmp_path: Any) -> None:
    found = verdict(tmp_path, LAUNCHES["vllm"], "8xh100-sxm", set=["rate=2", "prompt=2048", "output=256"])
    assert found.own.throughput == pytest.approx(2 * 256)
    assert "2 requests/s, 2,048 prompt + 256 output tokens" in found.own.load
    fewer = verdict(tmp_path, LAUNCHES["vllm"], "8xh100-sxm", set=["users=8"])
    assert fewer.own.users == 8
    assert fewer.own.per_user > verdict(tmp_path, LAUNCHES["vllm"], "8xh100-sxm").own.per_user
    slow = verdict(tmp_path, LAUNCHES["vllm"], "8xh100-sxm", set=["rate=900"])
    assert slow.own.per_user is None
    assert any("it does not serve 900 requests/s" in line for line in slow.own.sentences())


def test_settings_of_a_file_change_its_prediction(tmp_path: Any) -> None:
    plain = verdict(tmp_path, LAUNCHES["vllm"], "8xh100-sxm").own
    short = verdict(tmp_path, LAUNCHES["vllm"].replace("\n", " --max-num-batched-tokens 256\n"), "8xh100-sxm").own
    assert short.ttft != plain.ttft
    few = verdict(tmp_path, LAUNCHES["vllm"].replace("-seqs 64", "-seqs 4"), "8xh100-sxm", set=["users=64"]).own
    assert few.ttft > 4 * plain.ttft
    small = verdict(tmp_path, LAUNCHES["vllm"].replace("\n", " --gpu-memory-utilization 0.5\n"), "8xh100-sxm").own
    assert small.capacity == pytest.approx(plain.capacity * 5 / 9, rel=0.01)


def test_lengths_are_those_of_the_engine() -> None:
    keys = {name: programs()[name].table for name in ("vllm", "sglang")}
    read = keys["vllm"]["--max-model-len"][0].kind.read
    assert [read(text) for text in ("4096", "4k", "4K", "1.5k", 32768)] == [4096, 4000, 4096, 1500, 32768]
    with pytest.raises(ValueError, match="auto"):
        read("auto")


def test_sglang_with_data_parallel_attention_has_one_copy() -> None:
    text = "python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-V3 --tp 8 --dp 8 --enable-dp-attention --context-length 8192\n"
    facts = read_sources([Source("s.sh", text)], {}).facts
    assert [facts.value(name) for name in ("tp", "replicas", "devices", "attention_dp")] == [8, 1, 8, True]


def test_flags_of_vllm_and_sglang_exist() -> None:
    """Every flag that is written, or whose value is read, is one that the program itself lists (abbreviations are only read)."""
    folder = BUILT_IN / "programs" / "keys"

    def flags(name: str) -> None:
        listed = set(json.loads((folder / f"{name}.json").read_text(encoding="utf-8")))
        program = programs()[name]
        flags_read = (
            row.key.partition(".")[0] for row in program.keys if row.key.startswith("--")
        )  # of `--a.b`, a member of JSON, --a
        keys = {key.replace("--no-enable-", "--enable-") for key in flags_read}
        assert keys <= listed
        hosts = export(plan(**PLANS["hosts"]), name, "leaderworkerset")
        lines = [line for line in hosts.files["serve.yaml"].splitlines() if not line.startswith("#")]
        written = {word for line in lines for word in line.split() if re.fullmatch(r"--[a-z][a-z-]+", word)}
        assert len(written) > 8
        assert written <= listed

    check_every(flags, [("vllm",), ("sglang",)])
