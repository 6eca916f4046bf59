"""What starts a program: srun, torchrun, python -m torch.distributed.run, deepspeed, accelerate launch, mpirun, bash -c, env, nohup."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshwise.export.facts import Stated
from meshwise.export.read.shell import Command
from meshwise.export.source import Source, Word


@dataclass(frozen=True)
class Started:
    """A program behind its launcher."""

    program: str
    """The script or program: 'pretrain_gpt.py', 'vllm', 'torchtitan.train', 'axolotl'."""
    words: tuple[Word, ...]
    """Its arguments."""
    facts: tuple[Stated, ...]
    """What the launcher and the environment say: nodes, devices_per_node, devices, env:NAME."""
    launcher: str = ""
    """'torchrun', 'deepspeed', 'accelerate', 'srun', ...; '' for none. accelerate's own flags (--config_file) stay in `launcher_words`."""
    launcher_words: tuple[Word, ...] = ()
    certain: bool = True


def unwrap(command: Command, given: Mapping[str, str], beside: Sequence[Source] = ()) -> list[Started]:
    """Return the programs that a command starts, without what starts them; several for `bash -c 'a; b'`."""
    raise NotImplementedError
