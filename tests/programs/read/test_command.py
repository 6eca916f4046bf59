"""Launchers in front of a program are taken off, and what they say is kept."""

import pytest

from meshwise.programs.read import command, shell
from meshwise.programs.source import Source


def started(line: str, **given: str) -> command.Started:
    script = shell.read(Source("run.sh", line), given)
    found = [one for each in script.commands for one in command.unwrap(each, given)]
    assert len(found) == 1, [one.program for one in found]
    return found[0]


@pytest.mark.parametrize(
    ("line", "program", "first", "facts"),
    [
        (
            "torchrun --nproc_per_node 8 --nnodes=4 pretrain_gpt.py --bf16",
            "pretrain_gpt.py",
            "--bf16",
            {"nodes": 4, "devices_per_node": 8},
        ),
        (
            "torchrun --standalone --nproc-per-node=gpu -m torchtitan.train --x",
            "torchtitan.train",
            "--x",
            {"nodes": 1, "devices_per_node": None},
        ),
        (
            "python3 -u -m torch.distributed.run --nnodes 1:8 --nproc_per_node 4 t.py -a",
            "t.py",
            "-a",
            {"nodes": 8, "devices_per_node": 4},
        ),
        ("srun -N2 --ntasks-per-node=1 numactl --cpunodebind=0 python -u train.py --x", "train.py", "--x", {"nodes": 2}),
        ("srun --jobid 7 bash -c 'torchrun --nproc_per_node 8 a/t.py --x 1'", "t.py", "--x", {"nodes": 1, "devices_per_node": 8}),
        ("deepspeed --num_gpus 4 --num_nodes=2 run.py --y", "run.py", "--y", {"nodes": 2, "devices_per_node": 4}),
        ("deepspeed --include localhost:0,1,2 run.py --y", "run.py", "--y", {"nodes": 1, "devices_per_node": 3}),
        (
            "accelerate launch --config_file f.yaml --num_processes 16 --num_machines 2 s.py -z",
            "s.py",
            "-z",
            {"nodes": 2, "devices": 16},
        ),
        ("accelerate launch --multi_gpu -m axolotl.cli.train c.yml", "axolotl.cli.train", "c.yml", {}),
        ("env A=1 nohup vllm serve m --tensor-parallel-size 4", "vllm", "serve", {"env:A": "1"}),
        ("CUDA_VISIBLE_DEVICES=0,1,2,3 llamafactory-cli train x.yaml", "llamafactory-cli", "train", {"devices_per_node": 4}),
        ("FORCE_TORCHRUN=1 NNODES=2 llamafactory-cli train x.yaml", "llamafactory-cli", "train", {"nodes": 2}),
        ("mpirun -np 16 --allow-run-as-root -x PATH python t.py --k", "t.py", "--k", {"devices": 16}),
        ("docker run --gpus all -v /a:/b img:1 torchrun --nproc_per_node 2 t.py --k", "t.py", "--k", {"devices_per_node": 2}),
        ("ssh host1 'cd x; torchrun --nproc_per_node 2 t.py --k'", "t.py", "--k", {"devices_per_node": 2}),
        ("NGPU=4 ./run_train.sh --k", "run_train.sh", "--k", {"devices_per_node": 4}),
        ("ray job submit --address http://x -- python t.py --k", "t.py", "--k", {}),
        ("timeout 3600 python -X dev t.py --k", "t.py", "--k", {}),
    ],
)
def test_a_launcher_is_taken_off(line: str, program: str, first: str, facts: dict[str, object]) -> None:
    found = started(line)
    said = {one.fact: one.value for one in found.facts}
    assert (found.program, found.words[0].text) == (program, first)
    assert {name: said.get(name, "missing") for name in facts} == facts


def test_a_count_points_to_the_number_in_the_file() -> None:
    line = "GPUS=8\nNODES=${NODES:-4}\ntorchrun --nproc_per_node $GPUS --nnodes=$NODES t.py"
    spans = {one.fact: one.span for one in started(line).facts}
    per_node, nodes = spans["devices_per_node"], spans["nodes"]
    assert per_node is not None
    assert nodes is not None
    assert (line[per_node.start : per_node.end], per_node.line) == ("8", 1)
    assert nodes.line in (2, 3)


def test_an_unknown_count_stays_unknown_until_it_is_given() -> None:
    line = "torchrun --nproc_per_node 8 --nnodes $1 t.py"
    assert {one.fact: one.value for one in started(line).facts}["nodes"] is None
    assert {one.fact: one.value for one in started(line, **{"1": "16"}).facts}["nodes"] == 16


@pytest.mark.parametrize("line", ["python -c 'print(1)'", "mkdir -p x", "export X=1", "A=1"])
def test_a_command_without_a_program_starts_none(line: str) -> None:
    script = shell.read(Source("run.sh", line), {})
    programs = [one.program for each in script.commands for one in command.unwrap(each, {})]
    assert programs in ([], ["mkdir"])
