"""Companion files: what a chosen program's command says together with the files that it names and the launcher that starts it."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from meshwise.errors import UserError
from meshwise.export.facts import ENVIRONMENT, Facts, Stated
from meshwise.export.program import Program, joined, plain_key, programs
from meshwise.export.read import flags, tables, tree
from meshwise.export.source import Setting, Source, Unknown, Word

if TYPE_CHECKING:
    from meshwise.export.read.files import Candidate, Found

TYPES = {"use_fsdp": "FSDP", "use_deepspeed": "DEEPSPEED", "multi_gpu": "MULTI_GPU"}
SECTIONS = (
    ("fsdp_", "fsdp_config."),
    ("parallelism_config_", "parallelism_config."),
    ("dynamo_", "dynamo_config."),
    ("zero_stage", "deepspeed_config."),
    ("offload_", "deepspeed_config."),
    ("deepspeed_config_file", "deepspeed_config."),
    ("gradient_accumulation", "deepspeed_config."),
)
"""Sections of accelerate's YAML that its flags belong to, by the start of their name."""


@dataclass(frozen=True)
class Together:
    """The facts of one program with its companions."""

    facts: Facts
    missing: tuple[str, ...]
    notes: tuple[str, ...]


def facts_of(one: "Candidate", found: "Found") -> Together:
    """Return the facts of a candidate with those of the files that it names and of what starts it."""
    missing: list[str] = []
    notes: list[str] = []
    own = list(one.settings)
    more: list[Facts] = []
    for setting, program in _references(one.program, own):
        source = _source(setting, program, found)
        if source is None:
            missing.append(f"{setting.value} ({setting.key}, {setting.span}) was not given")
        elif program.name == one.program.name:
            own = [*settings_of(source), *own]
        else:
            more.append(_with_references(program, settings_of(source), found, missing))
    more += _launched(one, found, missing)
    facts = one.program.read(own, more)
    launch = Facts.of([*found.launch, *_started_facts(one, found)])
    notes += [f"{word.unknown} may say more, and is not known" for word in _open(one)]
    return Together(joined(facts, launch), tuple(missing), tuple(dict.fromkeys(notes)))


def _with_references(program: Program, settings: Sequence[Setting], found: "Found", missing: list[str]) -> Facts:
    """Return the facts of a companion file with those of the files that it names in turn."""
    more: list[Facts] = []
    for setting, other in _references(program, settings):
        source = _source(setting, other, found)
        if source is None:
            missing.append(f"{setting.value} ({setting.key}, {setting.span}) was not given")
        else:
            more.append(other.read(settings_of(source)))
    return program.read(settings, more)


def _references(program: Program, settings: Sequence[Setting]) -> Iterable[tuple[Setting, Program]]:
    refers = {plain_key(key): name for key, name in program.refers.items()}
    for setting in settings:
        name = refers.get(plain_key(setting.key))
        if name and setting.value is not True and setting.value not in (None, False, ""):
            yield setting, programs()[name]


def _source(setting: Setting, program: Program, found: "Found") -> Source | None:
    """Return the file that a setting names among those given, else the only given file of that program."""
    if not isinstance(setting.value, Unknown):
        wanted = PurePosixPath(str(setting.value)).name
        for source in found.sources:
            if wanted in (PurePosixPath(source.name).name, PurePosixPath(source.file).name if not source.name else ""):
                return source
    fitting = {
        id(one.source): one.source
        for one in found.candidates
        if one.program.name == program.name and one.started is None and one.score > 1
    }
    return next(iter(fitting.values())) if len(fitting) == 1 else None


def settings_of(source: Source) -> list[Setting]:
    """Return the settings of a configuration file."""
    name = source.name or source.file
    if name.endswith(".toml"):
        return tables.settings(source)
    try:
        return tree.settings(source)
    except UserError:
        return []


def _launched(one: "Candidate", found: "Found", missing: list[str]) -> list[Facts]:
    """Return what accelerate says where it starts the program: its YAML, then its own flags."""
    started = one.started
    if started is None or started.launcher != "accelerate":
        return []
    program = programs()["accelerate"]
    own = flags.settings(started.launcher_words, {})
    file = next((setting for setting in own if plain_key(setting.key) in ("--config-file",)), None)
    settings: list[Setting] = []
    if file is not None:
        source = _source(file, program, found)
        if source is None:
            missing.append(f"{file.value} ({file.key}, {file.span}) was not given")
        else:
            settings += settings_of(source)
    settings += [_as_key(setting) for setting in own]
    if file is None and not any(setting.key == "distributed_type" for setting in settings):
        return [program.read(settings).without("zero", "fsdp_version")]
    return [_with_references(program, settings, found, missing)]


def _as_key(setting: Setting) -> Setting:
    """Return a flag of `accelerate launch` as the key of its YAML."""
    name = setting.key.lstrip("-").replace("-", "_")
    if name in TYPES:
        return Setting("distributed_type", TYPES[name], setting.span)
    section = next((section for start, section in SECTIONS if name.startswith(start)), "")
    return Setting(section + name, setting.value, setting.span)


def _started_facts(one: "Candidate", found: "Found") -> list[Stated]:
    """Return what starts the program; for a configuration file, what starts the only program of the scripts beside it."""
    if one.started is not None:
        return list(one.started.facts)
    return [fact for started in found.started for fact in started.facts]


def _open(one: "Candidate") -> list[Word]:
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
