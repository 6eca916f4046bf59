"""What SECURITY.md promises for files of strangers: verbs that only read open no socket, start no process and write nothing."""

import json
import os
import pickle
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from meshwise.errors import UserError
from meshwise.ui.cli.help import ALL_VERBS
from support.command import meshwise
from support.fuzz_targets import TARGETS
from support.gguf_files import LLAMA_LAYER, SIZES, model
from support.measured_rows import ROW
from support.quiet import quiet
from support.small_configs import small

FIXTURES = Path(__file__).parent / "fixtures"
EVIL = "$(touch {0}) `touch {0}` ; touch {0}\n!!python/object/apply:os.system ['touch {0}']\n"
"""Text that a shell, YAML or Python would run."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files as strangers may send them, each with text that would create `owned` if anything executed it."""
    made = tmp_path_factory.mktemp("strangers")
    evil = EVIL.format(made / "owned")
    (made / "config.json").write_text(
        json.dumps(small("llama") | {"_name_or_path": evil, "auto_map": {"AutoConfig": "evil.Config"}})
    )
    (made / "evil.py").write_text(f"import os; os.system('touch {made}/owned')")
    (made / "pytorch_model.bin").write_bytes(pickle.dumps(Gadget(made / "owned")))
    model("llama", SIZES, LLAMA_LAYER).write(made / "a.gguf")
    sizes = "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --seq-length 4096 --micro-batch-size 1 --global-batch-size 64"
    steps = f"--train-iters $(touch {made}/owned; echo 9)"
    (made / "train.sh").write_text(f"#!/bin/bash\n{evil}torchrun --nproc-per-node 8 pretrain_gpt.py {sizes} {steps}\n")
    (made / "train.yaml").write_text(f"base_model: {made}\nrun_id: !!python/object/apply:os.system ['touch {made}/owned']\n")
    (made / "run.log").write_bytes((FIXTURES / "audit" / "torchtitan-0001.log").read_bytes() + evil.encode())
    (made / "report.md").write_text(evil + (FIXTURES / "audit" / "eight-gpus.md").read_text())
    row = ROW | {"notes": evil.replace("\n", " ").replace('"', "'")}
    (made / "runs.csv").write_text(",".join(row) + "\n" + ",".join(f'"{value}"' for value in row.values()) + "\n")
    for name, target in (("trace.json", "profiler trace"), ("memory.pickle", "memory snapshot"), ("report.sqlite", "Nsight Systems"),
                         ("bench.json", "bench report")):  # fmt: skip
        (made / name).write_bytes(TARGETS[target].seeds()[0])
    (made / "traffic.csv").write_text("seconds,prompt,output\n" + "".join(f"{i},512,64\n" for i in range(20)))
    (made / "traffic.jsonl").write_bytes(TARGETS["traffic, JSON"].seeds()[0])
    (made / "preflight").mkdir()
    (made / "preflight" / "rows.jsonl").write_bytes(TARGETS["preflight rows"].seeds()[0].replace(b'"n1"', b'"$(touch owned)"'))
    said = evil.replace("\n", " ").replace("'", "").replace('"', "")
    prices = f'[[prices]]\nprice = "$4.20/h"\ndate = "2026-01-01"\nsource = "{said}"\n[[sources]]\ntitle = "{said}"\nurl = "https://example.org"\n'
    (made / "cluster.toml").write_text(f'name = "{said}"\nnodes = 2\nchips = "8xh100-sxm"\nnotes = ["{said}"]\n{prices}')
    meshwise("plan", "llama-3-8b", "--on", "8xh100-sxm", "--batch", "64x2048", "--out", str(made / "plan.json"))
    other = json.loads((made / "plan.json").read_text())
    (made / "other.json").write_text(json.dumps(other | {"notes": [said]}))
    meshwise("serve", "llama-3-8b:q4_k_m", "--on", "2xrtx3090", "--out", str(made / "serve.json"))
    stated = json.loads((made / "serve.json").read_text())
    (made / "serve.json").write_text(json.dumps(stated | {"notes": [evil.replace("\n", " ")]}))
    return made


class Gadget:
    """An object that creates a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return os.open, (str(self.path), os.O_CREAT)


READS = [
    ("count", "."), ("count", "config.json"), ("count", "a.gguf"), ("count", "llama-3-8b"),
    ("plan", "config.json", "--on", "8xh100-sxm", "--batch", "64x128"), ("plan", "llama-3-8b", "--on", "8xh100-sxm", "--batch", "64x2048"),
    ("serve", "a.gguf", "--on", "2xrtx3090"), ("serve", ".", "--on", "h100-sxm"),
    ("check", "train.sh"), ("check", "train.sh", "--on", "8xh100-sxm"), ("check", "train.yaml"), ("check", "config.json"),
    ("audit", "run.log"), ("audit", "report.md"), ("audit", "runs.csv"),
    ("validate", "runs.csv"), ("validate", "bloom_prequel"),
    ("show", "chips"), ("show", "frameworks", "megatron"), ("show", "models", "llama-3-8b"),
    ("explain", "plan.json"), ("explain", "serve.json"), ("export", "plan.json", "--to", "megatron"),
    ("doctor", "trace.json"), ("doctor", "memory.pickle"), ("doctor", "report.sqlite"), ("share", "bench.json"),
    ("pick", "--on", "2xrtx3090"), ("skill",),
    ("explain", "plan.json", "other.json"), ("preflight", "--read", "preflight"), ("show", "trace", "traffic.jsonl"),
    ("plan", "llama-3-8b", "--on", "cluster.toml", "--batch", "64x2048"),
    ("replay", "llama-3-8b", "--on", "1xh100-sxm", "--trace", "traffic.csv"), ("show", "trace", "traffic.csv"),
]  # fmt: skip
"""Verbs that only read, with files of strangers."""
ACTS = {"run", "tune", "bench", "probe", "preflight", "generate", "make-gguf", "calibrate", "ui", "mcp", "about"}
"""Verbs that are asked to start something or to write."""
SICK = {("preflight", "--read", "preflight")}
REFUSED = {("check", "config.json"), ("share", "bench.json")}


@pytest.mark.parametrize("words", READS, ids=" ".join)
def test_verbs_that_read_do_nothing_else(words: tuple[str, ...], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    before = {path.name: path.stat().st_mtime_ns for path in folder.iterdir()}
    with quiet():
        done = meshwise(*words)
    assert done.code == (2 if words in REFUSED else 1 if words in SICK else 0), done.err
    assert "Traceback" not in done.err
    assert {path.name: path.stat().st_mtime_ns for path in folder.iterdir()} == before
    assert not (folder / "owned").exists()


@pytest.mark.parametrize(
    "words", [("check", "rl.sh", "--on", "8xh100-sxm"), ("validate", "served.csv"), ("audit", "served.csv")], ids=" ".join
)
def test_a_model_that_a_stranger_names_is_not_looked_up_on_the_hub(words: tuple[str, ...], tmp_path: Path) -> None:
    """It would tell the hub, with the token of the user, who reads the file."""
    sizes = "data.train_batch_size=512 data.max_prompt_length=1024 data.max_response_length=1024 trainer.n_gpus_per_node=8"
    policy = "actor_rollout_ref.model.path=somebody/tracked actor_rollout_ref.rollout.n=4"
    (tmp_path / "rl.sh").write_text(f"python3 -m verl.trainer.main_ppo {sizes} {policy}\n")
    (tmp_path / "served.csv").write_text(
        "source,row_id,engine,model,quant,gpu,n_gpus,prompt_len,gen_len,decode_tok_s\nx,1,vllm,somebody/tracked,bf16,H200,1,512,128,75\n"
    )
    with quiet(reads=tmp_path):
        done = meshwise(words[0], str(tmp_path / words[1]), *words[2:])
    assert "Traceback" not in done.err
    assert "tracked" in done.out + done.err


def test_every_verb_either_only_reads_under_the_guard_or_is_asked_to_act() -> None:
    """A new verb stands in one of both lists."""
    assert {words[0] for words in READS} | ACTS == set(ALL_VERBS)


@pytest.mark.parametrize("act", [
    lambda path: path.write_text("x"), lambda path: path.mkdir(), lambda path: os.rename(path.parent / "a", path),
    lambda path: subprocess.run([sys.executable, "-c", ""], check=True), lambda path: os.system("true"),
    lambda path: socket.socket(socket.AF_INET, socket.SOCK_DGRAM).connect(("127.0.0.1", 9)),
    lambda path: pickle.loads(pickle.dumps(Gadget(path))), lambda path: os.open(path, os.O_RDWR | os.O_CREAT),
], ids=["write", "folder", "rename", "process", "shell", "socket", "pickle", "open"])  # fmt: skip
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_guard_sees_each_kind_of_act(act: Callable[[Path], object], tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with pytest.raises(AssertionError), quiet():
        act(tmp_path / "b")


@pytest.mark.parametrize("act", [
    lambda path: path.read_text(), lambda path: list(path.parent.iterdir()), lambda path: os.open(path, os.O_RDONLY),
    lambda path: (path.parent / "named" / "link").read_text(), lambda path: os.scandir(path.parent).close(),
], ids=["read", "list", "open", "link", "scan"])  # fmt: skip
def test_the_guard_sees_what_is_read_outside_of_a_folder_even_where_the_block_fails(
    act: Callable[[Path], object], tmp_path: Path
) -> None:
    (tmp_path / "secret").write_text("x")
    named = tmp_path / "named"
    named.mkdir()
    (named / "file").write_text("x")
    (named / "link").symlink_to(tmp_path / "secret")
    with quiet(reads=named):
        assert (named / "file").read_text() == "x"
        assert len(list(named.iterdir())) == 2

    def refuses() -> None:
        act(tmp_path / "secret")
        raise UserError("refused")

    with pytest.raises(AssertionError, match=r"reads|lists"), quiet(reads=named):
        refuses()
