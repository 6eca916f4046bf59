"""Program and Launcher: how one training or serving program, and one way to start processes, say the facts of a run.

A program is one file with `PROGRAM` in `train/`, `serve/`, `rl/`, a launcher one with `LAUNCHER` in `launch/`, each named like its file,
punctuation aside; another package registers its own under the entry-point groups `meshwise.programs` and `meshwise.launchers`. The table
`keys` of a program serves both directions: `wording` turns the facts of a plan into the program's own facts, `keys` writes and reads them,
`meaning` turns them back.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import Any, Literal, cast

from meshwise.catalogue.frameworks import find_framework
from meshwise.catalogue.plugins import load_own, load_plugins
from meshwise.errors import UserError, nearest, quoted
from meshwise.programs.kinds import INT, Kind
from meshwise.programs.source import Setting, Source, Unknown
from meshwise.runs.run import Run, Stated, Value

PROGRAMS, LAUNCHERS = "meshwise.programs", "meshwise.launchers"
TRAIN, SERVE, LAUNCH = "meshwise.programs.train", "meshwise.programs.serve", "meshwise.programs.launch"
RL = "meshwise.programs.rl"  # the folders of our own programs and launchers
Form = Literal["flags", "yaml", "toml", "json", "text"]
KERNELS = "kernels:"  # prefix of a program's own facts about its kernels, which no better layout changes: 'kernels:graph_impl'


@dataclass(frozen=True)
class Key:
    """One row of a program's table: a fact and the key that sets it."""

    fact: str  # a name of FACTS, or a name of the program's own that `meaning` and `wording` translate
    key: str  # the key that is written: '--tensor-model-parallel-size', 'parallelism.tensor_parallel_degree'
    kind: Kind = INT
    also: tuple[str, ...] = ()  # other spellings that are read but never written
    default: Value | None = None  # default of an absent key in this version; None if it has none
    write: Literal["always", "changed", "never"] = "changed"
    """Whether it is written always, only where it differs from the default, or never."""


@dataclass(frozen=True)
class Refusal:
    """A fact that a program cannot express, and the nearest value that it can."""

    why: str  # a sentence: 'nanotron has no ZeRO 3'
    instead: Mapping[str, int | str]  # axes of the nearest layout that the program can express


@dataclass(frozen=True)
class Job:
    """Processes to start on every node: what a launcher writes a script or manifest for."""

    name: str
    nodes: int
    devices_per_node: int
    command: tuple[str, ...]
    """The words of the command. Words may hold the variables $NNODES, $NODE_RANK, $MASTER_ADDR and $MASTER_PORT, which a launcher sets."""
    starter: Literal["torchrun", "node", "once"] = "torchrun"
    """torchrun starts the command once per device; node: the launcher starts it once per node; once: on the first node only."""
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    header: tuple[str, ...] = ()  # lines for the comment at the top
    files: Mapping[str, str] = field(default_factory=dict[str, str])  # files that must be beside the command, by name
    chip: str = ""  # name of the device, for accelerators in SkyPilot and Kubernetes
    hours: float = 24.0  # time limit
    others: tuple[str, ...] = ()  # words that every node but the first adds to the command
    preflight: bool = False  # whether nodes are checked by `meshwise preflight` before the command


@dataclass(frozen=True)
class Written:
    """Files that a program's writer returns, and the command that starts it."""

    files: Mapping[str, str]
    command: tuple[str, ...]
    starter: Literal["torchrun", "node", "once"] = "torchrun"
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    others: tuple[str, ...] = ()  # words that every node but the first adds to the command


@dataclass(frozen=True)
class Setup:
    """Everything that a writer may use: the facts of one layout of a plan."""

    values: Mapping[str, Value]  # facts by name
    config: Mapping[str, object]  # the keys of the model's config.json
    model: str  # hub id, or name, of the model
    header: tuple[str, ...] = ()  # lines for the comment at the top of a file
    plan: Any = field(default=None, repr=False)  # the TrainPlan or ServePlan, for details that no fact holds

    def whole(self, name: str, default: int = 1) -> int:
        value = self.values.get(name, default)
        return int(cast(int, value))

    def text(self, name: str, default: str = "") -> str:
        return str(self.values.get(name, default))


def same_facts(facts: Run) -> Run:
    return facts


def plain_words(setup: Setup) -> dict[str, Value]:
    return dict(setup.values)


def no_refusals(_: Setup) -> Iterable[Refusal]:
    return ()


@dataclass(frozen=True, kw_only=True)
class Program:
    """A training or serving program in both directions."""

    name: str
    title: str
    version: str  # the version whose keys and defaults these are
    kind: Literal["train", "serve", "rl"] = "train"
    framework: str = ""  # the framework of the catalogue that predicts it (training), or the engine (serving)
    form: Form
    keys: tuple[Key, ...]
    write: Callable[[Setup], Written] | None  # return the files and the command of a plan; None: the program is only read
    refuse: Callable[[Setup], Iterable[Refusal]] = no_refusals
    """Return what the program cannot express of a plan, with the nearest that it can."""
    wording: Callable[[Setup], Mapping[str, Value]] = plain_words
    """Turn facts of FACTS into the program's own words, for the table `keys`."""
    meaning: Callable[[Run], Run] = same_facts
    """Turn facts in the program's own words into those of FACTS, and add what follows from them."""
    recognises: Callable[[Sequence[Setting], Source | None, str], int]
    """Return how surely settings are of this program, 0 for no, from the settings, the file, and the script that a command starts."""
    edition: Callable[[Run], str] | None = None
    """Return the version that the facts of a file belong to, where files of several are read."""
    flag_words: bool = False  # whether keys of a YAML or JSON form are also read from flags: --per_device_train_batch_size 4
    refers: Mapping[str, str] = field(default_factory=dict[str, str])
    """Keys whose value names a further file, with the program that reads it: {"--deepspeed_config": "deepspeed"}."""
    auto: str = ""  # why the value 'auto' is not known, where the program has it
    check: str = ""  # the command with which a user checks the files by the program's own parser

    def version_of(self, facts: Run) -> str:
        """Return the version that a file is of."""
        return self.edition(facts) if self.edition is not None else self.version

    def read(self, settings: Iterable[Setting], companions: Iterable[Run] = (), base: str = "") -> Run:
        """Return the facts of settings, companions and defaults, with their meaning; `base`: a configuration that was not given."""
        rows = self.table
        said: list[Stated] = []
        for setting in settings:
            for row in rows.get(plain_key(setting.key), ()):
                said += _stated(row, setting, self.auto)
        facts = Run.of(said)
        for companion in companions:
            facts = facts.merged(companion)
        version = f"default of {self.title} {self.version}"
        missing = {row.fact: row for row in reversed(self.keys) if row.default is not None and row.fact not in facts}
        facts = facts.adding(Stated(row.fact, row.default, "default", None, row.key, version) for row in missing.values())
        facts = self.meaning(facts)
        return _without_defaults(facts, base) if base else facts

    @cached_property
    def table(self) -> dict[str, list[Key]]:
        """Return the rows by every spelling of their key; one key may say several facts."""
        rows: dict[str, list[Key]] = {}
        for row in self.keys:
            for name in (row.key, *row.also):
                rows.setdefault(plain_key(name), []).append(row)
                if self.flag_words and not name.startswith("-"):
                    rows.setdefault(plain_key(f"--{name}"), []).append(row)
        return rows

    @cached_property
    def takes(self) -> dict[str, int]:
        """How many words each flag takes."""
        return {name: rows[0].kind.takes for name, rows in self.table.items() if name.startswith("-")}

    def settings(self, values: Mapping[str, Value]) -> list[tuple[str, Any]]:
        """Return the keys and values that say some facts, in the order of the table."""
        pairs: list[tuple[str, Any]] = []
        for row in self.keys:
            if row.write == "never" or row.fact not in values:
                continue
            value = values[row.fact]
            if row.write == "changed" and value == row.default:
                continue
            written = row.kind.write(value)
            if written is not None:
                pairs.append((row.key, written))
        return pairs

    def key_of(self, fact: str) -> Key | None:
        """Return the row that writes a fact."""
        return next((row for row in self.keys if row.fact == fact and row.write != "never"), None)


def _without_defaults(facts: Run, base: str) -> Run:
    """Return the facts with those that only a default says as unknown: a file that was not given says them."""
    why = f"in {base}, which was not given"
    return facts.adding(Stated(one.fact, None, "unknown", one.span, one.key, why) for one in facts if one.how == "default")


def predicted_by(program: Program, facts: Run) -> str:
    """Return the framework that predicts a file: the program's own facts, in the way in which its files say that it shards."""
    own, other = str(facts.value("tuner") or program.framework), str(facts.value("predicted_by") or "")
    if not other or other == own:
        return own
    through = find_framework(own).through
    if other in through:
        return f"{own}+{other}"
    return own if through else other


def plain_key(key: str) -> str:
    """Normalize a key as programs do: '-' and '_' in flags are the same."""
    return key.replace("_", "-") if key.startswith("-") else key


def _stated(row: Key, setting: Setting, auto: str) -> list[Stated]:
    """Parse one setting into facts; empty if its value means "unset" (null, -1)."""
    if setting.value is None:
        return []  # an explicit null is as good as no key
    if auto and setting.value == "auto":
        return [Stated(row.fact, None, "unknown", setting.span, setting.key, auto)]
    if isinstance(setting.value, Unknown):
        why = setting.value.why or f"{setting.value} is not known"
        return [Stated(row.fact, None, "unknown", setting.span, setting.key, why)]
    try:
        value = row.kind.read(setting.value)
    except (ValueError, TypeError, OverflowError):
        why = f"{quoted(setting.value, 40)} is not {row.kind.expects}"
        return [Stated(row.fact, None, "unknown", setting.span, setting.key, why)]
    if value is None:
        return [Stated(row.fact, None, "default", setting.span, setting.key, row.kind.open)] if row.kind.open else []
    return [Stated(row.fact, value, "said", setting.span, setting.key)]


@dataclass(frozen=True)
class Launch:
    """Facts about the machines in a launcher's file, and the scripts that it starts."""

    facts: tuple[Stated, ...]
    scripts: tuple[Source, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict[str, str])  # variables that it sets for its scripts
    files: tuple[Source, ...] = ()  # files that it lays beside its scripts, such as those of a ConfigMap
    pools: "tuple[Launch, ...]" = ()
    """Servers of several kinds that it starts, such as one pool for prompts and one for outputs; each has its scripts and its machines."""
    name: str = ""


def _no_launch(_: Source) -> Launch | None:
    return None


def _no_directives(_: Sequence[Setting]) -> Iterable[Stated]:
    return ()


@dataclass(frozen=True, kw_only=True)
class Launcher:
    """A way to start processes on nodes: a scheduler, an orchestrator or a plain script."""

    name: str
    title: str
    version: str
    write: Callable[[Job], Mapping[str, str]]  # return files by name; the first one starts the job
    start: str  # the command that starts the job: 'sbatch train.sbatch'
    read: Callable[[Source], Launch | None] = _no_launch
    """Return what a file of this launcher says; None for another file. Shell scripts are read by `read.shell` and `read.command`."""
    directives: Callable[[Sequence[Setting]], Iterable[Stated]] = _no_directives
    """Return what the directives in a script's comments (`#SBATCH`) say about machines."""
    check: str = ""  # the command with which a user checks the files


@cache
def programs() -> dict[str, Program]:
    """Load every program, by name."""
    modules = load_plugins(PROGRAMS, (TRAIN, SERVE, RL), "PROGRAM or lines")
    return _by_name(module.PROGRAM for module in modules.values() if hasattr(module, "PROGRAM"))


@cache
def launchers() -> dict[str, Launcher]:
    """Load every launcher, by name."""
    return _by_name(module.LAUNCHER for module in load_plugins(LAUNCHERS, (LAUNCH,), "LAUNCHER").values())


def _by_name(known: Iterable[Any]) -> dict[str, Any]:
    return {one.name: one for one in sorted(known, key=lambda one: one.name)}


def find_program(name: str) -> Program:
    """Return a program by name; of ours, no other is loaded. UserError with the nearest name for an unknown one."""
    own = getattr(load_own((TRAIN, SERVE, RL), name), "PROGRAM", None)
    return own if own is not None and own.name == name else _found(name, programs(), "--to")


def find_launcher(name: str) -> Launcher:
    """Return a launcher by name; of ours, no other is loaded. UserError with the nearest name for an unknown one."""
    own = getattr(load_own((LAUNCH,), name), "LAUNCHER", None)
    return own if own is not None and own.name == name else _found(name, launchers(), "--with")


def _found(name: str, known: dict[str, Any], option: str) -> Any:
    if name not in known:
        raise UserError(f"{option} {quoted(name)}: expected one of {', '.join(known)}{nearest(name, known)}")
    return known[name]
