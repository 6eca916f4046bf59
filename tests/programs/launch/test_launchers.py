"""Every launcher's file starts the command with exactly its words, and says the machines that `check` reads from it."""

import subprocess
from pathlib import Path

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from meshwise.programs.launch import script, slurm
from meshwise.programs.program import Job, launchers
from meshwise.programs.read import command, shell
from meshwise.programs.read.files import read_sources
from meshwise.programs.source import Setting, Source
from meshwise.runs.run import Span
from support.every import check_every

WORDS = ("pretrain_gpt.py", "--num-layers", "32", "--hidden-size", "4096", "--num-attention-heads", "32",
"--tensor-model-parallel-size", "4",
         "--pipeline-model-parallel-size", "2", "--micro-batch-size", "1", "--global-batch-size", "64", "--seq-length", "2048",
         "--bf16")  # fmt: skip
SHELL = ("slurm", "torchrun")


def job(**changed: object) -> Job:
    base = Job(
        "llama-3-70b",
        4,
        8,
        WORDS,
        environment={"CUDA_DEVICE_MAX_CONNECTIONS": "1"},
        header=("Made by a test", "Layout: tp4 pp2"),
        chip="h100-sxm",
    )
    return Job(**{**vars(base), **changed})  # pyright: ignore[reportArgumentType]


def test_check_reads_the_machines_and_the_words_back_from_every_launcher() -> None:
    def check(name: str, nodes: int) -> None:
        (file, text), *_ = launchers()[name].write(job(nodes=nodes)).items()
        facts = read_sources([Source(file, text)], {}).facts
        assert [facts.value(fact) for fact in ("tp", "pp", "mbs", "batch", "seq")] == [4, 2, 1, 64, 2048]
        assert (facts.value("nodes"), facts.value("devices_per_node")) == (nodes, 8)
        assert facts.value("env:CUDA_DEVICE_MAX_CONNECTIONS") == "1"

    check_every(check, [(name, nodes) for name in launchers() if name != "ray" for nodes in (1, 4)])


def test_every_file_has_the_header_first() -> None:
    def check(name: str) -> None:
        for text in launchers()[name].write(job()).values():
            assert "# Made by a test\n# Layout: tp4 pp2\n" in text[:120]

    check_every(check, [(name,) for name in launchers()])


TEXT = st.text("ab $'\"\\`|*{}!#~;&<>()%", min_size=1, max_size=12)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture])
@given(st.lists(TEXT, min_size=1, max_size=4), st.sampled_from([1, 2]), st.sampled_from(["torchrun", "node"]))
def test_words_with_any_character_reach_the_program(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], nodes: int, starter: str
) -> None:
    """bash runs the script with a program in place of torchrun that prints its arguments."""
    folder = tmp_path_factory.mktemp("words")
    wanted = job(nodes=nodes, command=("show", *texts), starter=starter, environment={})
    for program in ("torchrun", "show"):
        (folder / program).write_text("#!/bin/bash\nprintf '<%s>\\n' \"$@\"\n")
        (folder / program).chmod(0o755)
    (folder / "train.sh").write_text(launchers()["torchrun"].write(wanted)["train.sh"])
    environment = {"PATH": f"{folder}:/usr/bin:/bin", "NODE_RANK": "0", "MASTER_ADDR": "n1"}
    done = subprocess.run(
        ["bash", str(folder / "train.sh")], capture_output=True, text=True, env=environment, timeout=20, check=True
    )
    assert done.stdout.endswith("".join(f"<{text}>\n" for text in texts))
    sbatch = launchers()["slurm"].write(wanted)["train.sbatch"]
    for program, body in {"srun": 'while [[ $1 == --* ]]; do shift; done; exec "$@"', "scontrol": "echo n1"}.items():
        (folder / program).write_text(f"#!/bin/bash\n{body}\n")
        (folder / program).chmod(0o755)
    (folder / "train.sbatch").write_text(sbatch)
    variables = {
        "SLURM_NNODES": "2",
        "SLURM_JOB_NODELIST": "n[1-2]",
        "SLURM_JOB_ID": "7",
        "SLURM_NODEID": "0",
        "SLURMD_NODENAME": "n1",
        "SLURM_CPUS_ON_NODE": "4",
    }
    done = subprocess.run(
        ["bash", str(folder / "train.sbatch")],
        capture_output=True,
        text=True,
        env=environment | variables,
        timeout=20,
        check=True,
    )
    assert done.stdout.endswith("".join(f"<{text}>\n" for text in texts))


def test_what_is_not_set_stops_the_script_and_says_what_is_missing(tmp_path: Path) -> None:
    def check(name: str) -> None:
        needs = job(nodes=1, command=("train.py", "--data", "${DATA_PATH:?set DATA_PATH: the data}"))
        (file, text), *_ = launchers()[name].write(needs).items()
        (tmp_path / file).write_text(text)
        done = subprocess.run(
            ["bash", str(tmp_path / file)],
            capture_output=True,
            text=True,
            env={"PATH": "/usr/bin:/bin", "SLURM_NNODES": "1"},
            timeout=20,
        )
        assert done.returncode != 0
        assert "set DATA_PATH: the data" in done.stderr

    check_every(check, [(name,) for name in SHELL])


def test_words_of_other_nodes_are_added_there_alone(tmp_path: Path) -> None:
    served = job(command=("echo", "vllm"), starter="node", others=("--headless",), environment={})
    (tmp_path / "train.sh").write_text(launchers()["torchrun"].write(served)["train.sh"])

    def said(rank: int) -> str:
        environment = {"PATH": "/usr/bin:/bin", "NODE_RANK": str(rank), "MASTER_ADDR": "n1"}
        return subprocess.run(
            ["bash", str(tmp_path / "train.sh")], capture_output=True, text=True, env=environment, check=True, timeout=20
        ).stdout

    assert [said(0), said(1), said(3)] == ["vllm\n", "vllm --headless\n", "vllm --headless\n"]


def test_files_of_a_program_reach_the_containers() -> None:
    def check(name: str) -> None:
        (text,) = launchers()[name].write(job(files={"ds.json": '{"a": 1}\n'})).values()
        documents = list(yaml.safe_load_all(text))
        assert documents[0]["kind"] == "ConfigMap"
        assert documents[0]["data"] == {"ds.json": '{"a": 1}\n'}
        assert f"cp {'/etc/meshwise'}/* ." in text

    check_every(check, [("jobset",), ("trainjob",), ("leaderworkerset",)])


def test_the_driver_of_ray_is_python() -> None:
    (text,) = launchers()["ray"].write(job()).values()
    compile(text, "train_ray.py", "exec")
    assert "NODES = 4" in text
    assert "{'GPU': 8, 'CPU': 1}" in text


@pytest.mark.parametrize(
    ("lines", "facts"),
    [
        (
            ["--nodes=4", "--gres=gpu:a100:8", "--time=20:00:00"],
            {"nodes": 4, "devices_per_node": 8, "chip": "a100", "hours": 20.0},
        ),
        (["--nodes=2-4", "--gpus-per-node=h100:4"], {"nodes": 2, "devices_per_node": 4, "chip": "h100"}),
        (["--nodes=2", "--ntasks-per-node=8"], {"nodes": 2, "devices_per_node": 8}),
        (["--nodes=2", "--ntasks-per-node=1"], {"nodes": 2}),
        (["--gpus=16", "--nodes=2"], {"nodes": 2, "devices": 16}),
        (["--ntasks=4", "--nodes=4", "--gpus-per-task=8"], {"nodes": 4, "devices_per_node": 8}),
        (["--time=1-12"], {"hours": 36.0}),
        (["--time=90"], {"hours": 1.5}),
        (["--time=UNLIMITED", "--gres=gpu:8"], {"devices_per_node": 8}),
    ],
)
def test_directives_are_facts(lines: list[str], facts: dict[str, object]) -> None:
    settings = [Setting(line.partition("=")[0], line.partition("=")[2], Span("x", 1)) for line in lines]
    assert {one.fact: one.value for one in slurm.facts_of_directives(settings)} == facts


def test_time_limits_are_read_as_they_are_written() -> None:
    for hours in (0.5, 20.0, 24.0, 100.25):
        (stated,) = slurm.facts_of_directives([Setting("--time", script.time_limit(hours), Span("x", 1))])
        assert stated.value == hours


def test_words_of_a_list_in_a_manifest_keep_their_places() -> None:
    text = (
        "apiVersion: batch/v1\nkind: Job\nspec:\n  template:\n    spec:\n      containers:\n      - name: a\n"
        "        command: [torchrun, --nproc-per-node, '8']\n"
        '        args:\n        - pretrain_gpt.py\n        - --tensor-model-parallel-size\n        - "4"\n'
    )
    launch = launchers()["jobset"].read(Source("job.yaml", text))
    assert launch is not None
    (started,) = [one for each in shell.read(launch.scripts[0], {}).commands for one in command.unwrap(each, {})]
    assert (started.program, [word.text for word in started.words]) == ("pretrain_gpt.py", ["--tensor-model-parallel-size", "4"])
    span = started.words[1].span
    assert text[span.start : span.end] == "4"
