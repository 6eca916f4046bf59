"""Read a shell or Slurm script without running it: which commands it would run, with which words.

A small evaluator: assignments, arrays, `+=`, `${X}`, `${X:-d}`, `$(( ))`, `if`, `case`, heredocs, functions without arguments, `source`
of a file given beside it. Everything else (`$(...)`, `$1`, a loop) becomes unknown and stays so; `--set X=...` answers it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from meshwise.export.source import Setting, Source, Word


@dataclass(frozen=True)
class Command:
    """A simple command with its words after expansion, and the environment that it starts with."""

    words: tuple[Word, ...]
    environment: Mapping[str, Word]
    """Exported variables and assignments before the command."""
    certain: bool = True
    """Whether the command certainly runs: not in a branch whose condition is unknown."""


@dataclass(frozen=True)
class Script:
    """What a script would do."""

    commands: tuple[Command, ...]
    directives: tuple[Setting, ...]
    """`#SBATCH --nodes=4` as Setting('--nodes', '4', span)."""
    files: tuple[Source, ...]
    """Files that it writes by heredocs, after expansion, by the name it writes them to."""
    variables: Mapping[str, Word]
    """Every variable at the end of the script, exported or not."""
    unknown: Mapping[str, str]
    """Variables that only running the script would set, with the reason: {'$1': 'an argument of the script'}."""
    notes: tuple[str, ...] = ()


def read(source: Source, given: Mapping[str, str], beside: Sequence[Source] = ()) -> Script:
    """Return what a script would do. `given` answers unknown variables (`--set`); `beside` are files that it may source."""
    raise NotImplementedError
