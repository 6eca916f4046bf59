"""Companion files: what a chosen program's command says together with the files that it names and the launcher that starts it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from meshwise.errors import UserError
from meshwise.programs.program import Program, plain_key, programs
from meshwise.programs.read import flags, python, tables, tree
from meshwise.programs.read.command import Started
from meshwise.programs.read.unread import Unread, unread
from meshwise.programs.source import Setting, Source, Unknown, Word
from meshwise.runs.run import ENVIRONMENT, Run, Stated

TYPES = {"use_fsdp": "FSDP", "use_deepspeed": "DEEPSPEED", "multi_gpu": "MULTI_GPU"}
SECTIONS = (
    ("fsdp_", "fsdp_config."), ("parallelism_config_", "parallelism_config."), ("dynamo_", "dynamo_config."),
    ("zero_stage", "deepspeed_config."), ("offload_", "deepspeed_config."), ("deepspeed_config_file", "deepspeed_config."),
    ("gradient_accumulation", "deepspeed_config."),
)  # fmt: skip
"""Sections of accelerate's YAML that its flags belong to, by the start of their name."""


@dataclass(frozen=True)
class Candidate:
    """One program that the files may start."""

    program: Program
    settings: tuple[Setting, ...]
    score: int
    source: Source
    started: Started | None = None

    @property
    def certain(self) -> bool:
        return self.started is None or self.started.certain


@dataclass(frozen=True)
class Found:
    """Everything that files say before one program is chosen."""

    candidates: tuple[Candidate, ...]
    launch: tuple[Stated, ...]  # facts of schedulers and orchestrators
    started: tuple[Started, ...]
    sources: tuple[Source, ...]  # the files, and those that scripts write
    notes: tuple[str, ...]


@dataclass(frozen=True)
class Together:
    """The facts of one program with its companions."""

    facts: Run
    programs: tuple[Program, ...]  # the programs whose files were read with it
    missing: tuple[str, ...]
    notes: tuple[str, ...]
    unread: tuple[Unread, ...] = ()  # keys that no fact comes from


@dataclass
class _Said:
    """Settings and facts collected from companion files."""

    programs: list[Program] = field(default_factory=list[Program])
    missing: list[str] = field(default_factory=list[str])
    notes: list[str] = field(default_factory=list[str])
    unread: list[Unread] = field(default_factory=list[Unread])
    base: str = ""
    """The configuration that a command names, where it was not given: what the command leaves open is not known then."""


def facts_of(one: Candidate, found: Found) -> Together:
    """Return the facts of a candidate, of the files that it names, and of its launcher."""
    said = _Said()
    own = list(one.settings)
    more: list[Run] = []
    for setting, program in _references(one.program, own):
        source = _source(setting, program, found, said)
        read = settings_of(source) if source is not None else []
        if program.name != one.program.name:
            more += [_with_references(program, read, found, said)] if source is not None else []
        elif read:
            own = [*flags.of_file(read, program), *own]
        elif setting.span.line:
            said.base = str(setting.value)
    more += _launched(one, found, said)
    more += _beside(one, found, said) if one.started is None else []
    launch = _launch(found.launch, _started_facts(one, found))
    script = [Stated("script", one.started.program, "said")] if one.started is not None else []
    more.append(Run.of([*script, *(stated for stated in launch if stated.fact.startswith(ENVIRONMENT))]))
    facts = one.program.read(own, more, said.base)
    said.unread[:0] = unread(one.program, own)
    said.notes += [f"{word.unknown} may say more, and is not known" for word in _open(one)]
    notes, missing = tuple(dict.fromkeys(said.notes)), tuple(dict.fromkeys(said.missing))
    return Together(facts.merged(launch), tuple(said.programs), missing, notes, tuple(said.unread))


def _beside(one: Candidate, found: Found, said: _Said) -> list[Run]:
    """Return the other configuration files that were given with a Trainer's, and that no script ties to it."""
    if one.program.name != "trainer":
        return []
    others = [other for other in found.candidates if other.program.name in ("accelerate", "deepspeed") and other.started is None]
    other = max((other for other in others if other.source is not one.source), key=lambda other: other.score, default=None)
    if other is not None:
        return [_with_references(other.program, other.settings, found, said)]
    return [Run.of([Stated("from_file", True, "derived")])] if not found.started else []


def _launch(scheduler: Sequence[Stated], starter: Sequence[Stated]) -> Run:
    """Merge the machine facts of a scheduler and of the launcher it starts; the launcher wins on conflict."""
    known = {stated.fact for stated in scheduler if stated.value is not None}
    return Run.of([*scheduler, *(stated for stated in starter if stated.value is not None or stated.fact not in known)])


def _with_references(program: Program, settings: Sequence[Setting], found: Found, said: _Said) -> Run:
    """Return the facts of a companion file with those of the files that it names in turn."""
    more: list[Run] = []
    said.programs.append(program)
    said.unread += unread(program, settings)
    for setting, other in _references(program, settings):
        source = _source(setting, other, found, said)
        if source is not None:
            said.programs.append(other)
            more.append(other.read(settings_of(source)))
    return program.read(settings, more)


def _references(program: Program, settings: Sequence[Setting]) -> Iterable[tuple[Setting, Program]]:
    refers = {plain_key(key): name for key, name in program.refers.items()}
    for setting in settings:
        name = refers.get(plain_key(setting.key))
        if name and setting.value is not True and setting.value not in (None, False, ""):
            yield setting, programs()[name]


def _source(setting: Setting, program: Program, found: Found, said: _Said) -> Source | None:
    """Return the given file that a setting names, else the only given file of that program, else None."""
    if not isinstance(setting.value, Unknown):
        wanted = PurePosixPath(str(setting.value)).name
        for source in found.sources:
            if wanted == PurePosixPath(source.name or source.file).name:
                return source
    own = [one for one in found.candidates if one.program.name == program.name and one.started is None and one.score > 1]
    fitting = {id(one.source): one.source for one in own}
    if len(fitting) == 1:
        source = next(iter(fitting.values()))
        said.notes.append(f"{setting.value} ({setting.span}) is taken to be {source.file}")
        return source
    said.missing.append(f"{setting.value} ({setting.key}, {setting.span}) was not given")
    return None


def settings_of(source: Source) -> list[Setting]:
    """Return the settings of a configuration file."""
    name = source.name or source.file
    if name.endswith(".toml"):
        return tables.settings(source)
    try:
        return python.settings(source) if name.endswith(".py") else tree.settings(source)
    except UserError:
        return []


def _launched(one: Candidate, found: Found, said: _Said) -> list[Run]:
    """Return the facts of an `accelerate launch`: its YAML, then its own flags."""
    started = one.started
    if started is None or started.launcher != "accelerate":
        return []
    program = programs()["accelerate"]
    own = flags.settings(started.launcher_words, {})
    file = next((setting for setting in own if plain_key(setting.key) == "--config-file"), None)
    source = _source(file, program, found, said) if file is not None else None
    if file is not None and source is None:
        why = f"in {file.value}, which was not given"
        return [Run.of(Stated(name, None, "unknown", file.span, file.key, why) for name in ("zero", "precision"))]
    settings = [*(settings_of(source) if source is not None else []), *(_as_key(setting) for setting in own)]
    if not any(setting.key == "distributed_type" for setting in settings):
        return [program.read(settings).without("zero", "fsdp_version")]
    return [_with_references(program, settings, found, said)]


def _as_key(setting: Setting) -> Setting:
    """Return a flag of `accelerate launch` as the key of its YAML."""
    name = setting.key.lstrip("-").replace("-", "_")
    if name in TYPES:
        return Setting("distributed_type", TYPES[name], setting.span)
    section = next((section for start, section in SECTIONS if name.startswith(start)), "")
    return Setting(section + name, setting.value, setting.span)


def _started_facts(one: Candidate, found: Found) -> list[Stated]:
    """Return what starts the program; for a configuration file, what starts the only program of the scripts beside it."""
    if one.started is not None:
        return list(one.started.facts)
    return [fact for started in found.started for fact in started.facts]


def _open(one: Candidate) -> list[Word]:
    """Return words of the command that are wholly unknown and may be further flags."""
    if one.started is None:
        return []
    return [word for word in one.started.words if word.unknown and not word.text.strip() and word.unknown.startswith("$")]


def environment(settings: Sequence[Setting]) -> Iterable[Stated]:
    """Yield environment variables that a YAML sets under ENV_VARS or env."""
    for setting in settings:
        section, _, name = setting.key.partition(".")
        if section in ("ENV_VARS", "env", "environment") and name.isupper() and isinstance(setting.value, str | int):
            yield Stated(ENVIRONMENT + name, str(setting.value), "said", setting.span, name)
