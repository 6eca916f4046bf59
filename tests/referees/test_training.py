"""The parsers of training programs take what `export` writes for every layout that it does not refuse, and stop at the placeholders."""

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from meshwise.programs.program import programs
from support.launch_layouts import samples


def filled(words: tuple[str, ...], values: dict[str, str]) -> list[str]:
    """Return the words of a command with placeholders filled in."""
    done: list[str] = []
    for word in words:
        name = word[2:].partition(":")[0].rstrip("}") if word.startswith("${") else ""
        done.append(values.get(name, "1e-4" if name == "LR" else "x") if name else word)
    return done


@contextlib.contextmanager
def path_first(folder: str) -> Iterator[None]:
    """Import from a folder first: two versions of one program are in two folders."""
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)
        for name in [name for name in sys.modules if name.split(".")[0] == "torchtitan"]:
            del sys.modules[name]


def version(name: str) -> str:
    from importlib.metadata import version

    return version(name)


def test_megatron_takes_the_flags(monkeypatch: pytest.MonkeyPatch) -> None:
    arguments = pytest.importorskip("megatron.training.arguments")
    import torch

    chip = SimpleNamespace(major=9, minor=0, total_memory=80 << 30, multi_processor_count=132, name="NVIDIA H100 80GB HBM3")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda *_: chip)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda *_: chip.name)
    monkeypatch.setenv("WORLD_SIZE", "64")
    monkeypatch.setenv("RANK", "0")
    program, taken = programs()["megatron"], []
    for name, setup in samples(program):
        if setup.text("precision") in ("mxfp8", "nvfp4"):
            continue  # it asks the device, which is an H100 here
        assert program.write is not None
        written = program.write(setup)
        monkeypatch.delenv("CUDA_DEVICE_MAX_CONNECTIONS", raising=False)
        for key, value in written.environment.items():
            monkeypatch.setenv(key, value)
        words = filled(written.command, {"TRAIN_ITERS": "100"})
        monkeypatch.setattr(sys, "argv", [*words, "--no-rope-fusion"])
        try:
            args = arguments.validate_args(arguments.parse_args(), {})
        except (SystemExit, AssertionError, ValueError, RuntimeError) as error:
            raise AssertionError(f"{name}: {error}: {' '.join(words)}") from error
        assert args.data_parallel_size == setup.whole("dp"), name
        assert args.tensor_model_parallel_size == setup.whole("tp"), name
        taken.append(name)
    assert len(taken) > 15


def test_torchtitan_takes_the_flags() -> None:
    folder = os.environ.get("TORCHTITAN_03", "")
    if not folder:
        pytest.skip("TORCHTITAN_03 names the folder of torchtitan 0.3; 'make referees' sets it")
    with path_first(folder):
        from torchtitan.config import ConfigManager  # pyright: ignore[reportMissingImports]
        from torchtitan.distributed import ParallelDims  # pyright: ignore[reportMissingImports]

        program, taken = programs()["torchtitan"], []
        for name, setup in samples(program):
            if setup.text("precision") != "bf16":
                continue  # its converters ask the device
            assert program.write is not None
            words = filled(program.write(setup).command[2:], {"STEPS": "10"})
            try:
                config = ConfigManager().parse_args(words)
            except (SystemExit, ValueError, ImportError) as error:
                raise AssertionError(f"{name}: {error}: {' '.join(words)}") from error
            p = config.parallelism
            ParallelDims(
                dp_replicate=p.data_parallel_replicate_degree, dp_shard=p.data_parallel_shard_degree, cp=p.context_parallel_degree,
                tp=p.tensor_parallel_degree, pp=p.pipeline_parallel_degree, ep=p.expert_parallel_degree, world_size=64,
            )  # fmt: skip
            taken.append(name)
        assert len(taken) > 5


def test_torchtitan_02_takes_the_file_and_stops_at_placeholders(tmp_path: Path) -> None:
    folder = os.environ.get("TORCHTITAN_02", "")
    if not folder:
        pytest.skip("TORCHTITAN_02 names the folder of torchtitan 0.2; 'make referees' sets it")
    with path_first(folder):
        from torchtitan.config import ConfigManager  # pyright: ignore[reportMissingImports]

        program, taken, file = programs()["torchtitan-0.2"], [], tmp_path / "train.toml"
        for name, setup in samples(program):
            assert program.write is not None
            text = program.write(replace(setup, values={**setup.values, "steps": 10})).files["train.toml"]
            file.write_text(text)
            with pytest.raises((SystemExit, ValueError, TypeError, AttributeError)):
                ConfigManager().parse_args(["--job.config_file", str(file)])
            lines = [line.replace('["REPLACE_ME', '"REPLACE_ME').replace('as text"]', '"') for line in text.splitlines()]
            file.write_text("\n".join(lines) + "\n")
            try:
                config = ConfigManager().parse_args(["--job.config_file", str(file)])
            except (SystemExit, ValueError) as error:
                raise AssertionError(f"{name}: {error}: {text}") from error
            assert config.parallelism.tensor_parallel_degree == setup.whole("tp")
            taken.append(name)
        assert len(taken) > 8


def test_deepspeed_takes_the_json(monkeypatch: pytest.MonkeyPatch) -> None:
    config = pytest.importorskip("deepspeed.runtime.config")
    monkeypatch.setattr(config.dist, "get_world_size", lambda *_: 64)
    monkeypatch.setattr(config.dist, "get_rank", lambda *_: 0)
    taken = []
    for name in ("deepspeed", "trainer", "llama-factory"):
        program = programs()[name]
        for layout, setup in samples(program):
            assert program.write is not None
            text = program.write(setup).files.get("ds_config.json")
            if text is None or setup.whole("tp") * setup.whole("cp") > 1:
                continue  # the sizes of its groups need a process group
            read = config.DeepSpeedConfig(json.loads(text))
            assert read.zero_config.stage == setup.whole("zero"), layout
            assert read.train_micro_batch_size_per_gpu == setup.whole("mbs"), layout
            taken.append(layout)
    assert len(taken) > 5


def test_accelerate_takes_the_yaml(tmp_path: Path) -> None:
    launch = pytest.importorskip("accelerate.commands.launch")
    program, taken, file = programs()["accelerate"], [], tmp_path / "accelerate.yaml"
    for name, setup in samples(program):
        assert program.write is not None
        written = program.write(setup)
        file.write_text(written.files["accelerate.yaml"])
        words = [
            "--config_file",
            str(file),
            "--machine_rank",
            "0",
            "--main_process_ip",
            "host",
            "--main_process_port",
            "1",
            "train.py",
        ]
        args = launch.launch_command_parser().parse_args(words)
        launch._validate_launch_command(args)
        assert args.num_processes == 64, name
        if setup.whole("zero", 0) > 1 and setup.text("offload") != "optimizer":
            assert int(args.fsdp_version) == 2, name
            assert str(args.fsdp_reshard_after_forward).lower() == str(setup.whole("zero") == 3).lower(), name
        taken.append(name)
    assert len(taken) > 5


def test_trainer_takes_the_arguments(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    program, taken = programs()["trainer"], []
    for name, setup in samples(program):
        assert program.write is not None
        written = program.write(setup)
        words = filled(written.command[1:], {"OUTPUT_DIR": str(tmp_path)})
        pairs = dict(zip(words[::2], words[1::2], strict=True))
        known = {field.name for field in transformers.TrainingArguments.__dataclass_fields__.values()}
        own = {key.removeprefix("--") for key in pairs} - {"max_length", "model_name_or_path"}
        assert own <= known, name
        taken.append(name)
    assert len(taken) > 3
