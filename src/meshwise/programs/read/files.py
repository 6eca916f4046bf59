"""Launch files, read together -> Reading: the program that they start, its facts with their origin, and what was not given."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from meshwise.catalogue import files as catalogue
from meshwise.errors import UserError, quoted
from meshwise.programs.bash.budget import TooLong, limited
from meshwise.programs.program import Launch, Program, launchers, programs
from meshwise.programs.read import command, companions, flags, pages, python, tables, tree
from meshwise.programs.read.command import Started
from meshwise.programs.read.companions import Candidate, Found
from meshwise.programs.read.unread import Unread
from meshwise.programs.source import Command, Setting, Source
from meshwise.runs.fields import BY_NAME
from meshwise.runs.run import Run, Stated, in_words

SECRET = re.compile(r"env:.*(TOKEN|KEY|SECRET|PASSWORD)", re.IGNORECASE)  # variables whose values nobody should see in a report
MAX_FILE_BYTES = 500_000  # bytes of a launch file
SHELL = (".env", ".sh", ".bash", ".zsh", ".ksh", ".slurm", ".sbatch", ".sub", ".job", ".pbs", ".args", ".cmd")
TOML_TABLE = re.compile(r"\[{1,2}[A-Za-z_][\w.-]*\]{1,2}")  # the head of a table in TOML, alone on its line
COMPANIONS = ("accelerate", "deepspeed")  # programs whose files accompany those of another, more specific program
TREES = (".yaml", ".yml", ".json", ".jsonc")


@dataclass(frozen=True)
class Reading:
    """The program, facts and notes that were read from launch files."""

    program: Program
    facts: Run
    files: tuple[str, ...]  # the files that were read
    texts: Mapping[str, str]  # their texts, by name
    programs: tuple[Program, ...] = ()  # the chosen program, then those of its companion files
    missing: tuple[str, ...] = ()  # files that are referred to but were not given, one sentence each
    notes: tuple[str, ...] = ()
    unread: tuple[Unread, ...] = ()  # keys that no fact comes from

    @property
    def withheld(self) -> tuple[str, ...]:
        """Why there is no verdict on these files: keys that decide it and are not read."""
        return tuple(one.withholds for one in self.unread if one.withholds)

    @property
    def lessened(self) -> tuple[str, ...]:
        """What saves memory that no prediction counts."""
        return tuple(f"{one.key} ({one.span}): {one.lessens}" for one in self.unread if one.lessens)


Given = str | Path | Mapping[str, str]  # a launch file: its path, its text (which has line breaks), or texts by name


def read_files(files: Sequence[Given], given: Mapping[str, str] | None = None) -> Reading:
    """Read launch files together. `given` are `--set` values: variables of scripts, and facts by name. UserError where nothing is found."""
    return read_sources([source for file in files for source in _sources(file)], given or {})


def _sources(file: Given) -> list[Source]:
    if isinstance(file, str | Path):
        file = {"text": file} if isinstance(file, str) and "\n" in file else {str(file): _text(Path(file))}
    long = next((name for name, text in file.items() if len(text) > MAX_FILE_BYTES), None)
    if long is not None:
        raise UserError(f"{long}: {len(file[long]):,} characters; expected a launch file of at most {MAX_FILE_BYTES:,}")
    return [Source(name, text) for name, text in file.items()]


def _text(path: Path) -> str:
    text = catalogue.text_of(path)
    if path.suffix == ".py" and not python.reads(text):
        why = "Python is not read, but for calls of TrainingArguments, TRL's configurations, vLLM's LLM and Unsloth: it has none"
        raise UserError(f"{path}: {why}; give its launch script or a YAML")
    return text


def read_sources(sources: Sequence[Source], given: Mapping[str, str]) -> Reading:
    """Read launch files together, from their texts."""
    if not sources:
        raise UserError("no file to read: give a launch script or a configuration")
    names = ", ".join(source.file for source in sources)
    try:
        with limited():
            return _read(sources, given)
    except OverflowError:
        raise UserError(f"{names}: its sizes multiply to more than any run has") from None
    except TooLong:
        raise UserError(f"{names}: it takes too many steps to be read; expected a launch file") from None


def _read(sources: Sequence[Source], given: Mapping[str, str]) -> Reading:
    found = _found(sources, given)
    chosen = _chosen(found, sources)
    same = [one for one in found.candidates if one.program.name == chosen.program.name and not one.certain]
    variants = [chosen, *(one for one in same if one is not chosen)] if not chosen.certain else [chosen]
    readings = [companions.facts_of(one, found) for one in variants]
    ways = [dict(one.started.by) if one.started is not None else {} for one in variants]
    facts = _agreed([reading.facts for reading in readings], ways)
    answers = [Stated(name, _answer(value), "said", None, "--set") for name, value in given.items() if name in BY_NAME]
    facts = facts.without(*(one.fact for one in answers)).adding(answers)
    facts = facts.adding(one._replace(value="(set)") for one in facts if SECRET.match(one.fact) and one.value)
    texts = {source.file: source.text for source in sources}
    first = readings[0]
    used = (chosen.program, *first.programs)
    return Reading(chosen.program, facts, tuple(texts), texts, used, first.missing, (*found.notes, *first.notes), first.unread)


def _answer(text: str) -> int | float | str | bool:
    plain = text.replace("_", "")
    if plain.lstrip("-").isdecimal() and len(plain) < 18:
        return int(plain)
    if text.lower() in ("true", "false"):
        return text.lower() == "true"
    try:
        return float(plain)
    except ValueError:
        return text


# What each file says.


def kind_of(source: Source) -> str:
    """Return how a file is written: shell, tree (YAML, JSON), toml, page (Markdown with commands), unit, presets, python or modelfile."""
    name = Path(source.name or source.file)
    suffix, text = name.suffix.lower(), source.text
    if name.name.startswith("Modelfile") or suffix == ".modelfile":
        return "modelfile"
    if suffix in (".md", ".markdown", ".rst"):
        return "page"
    if suffix in (".py", ".ini"):
        return {".py": "python", ".ini": "presets"}[suffix]
    if suffix == ".service" or re.search(r"^ExecStart=", text, re.MULTILINE):
        return "unit"
    if suffix == ".toml":
        return "toml"
    if suffix in TREES:
        return "tree"
    if suffix in SHELL or name.name == ".env" or text.startswith("#!") or "#SBATCH" in text or "\n#PBS" in text:
        return "shell"
    start = text.lstrip()
    if start.startswith("{"):
        return "tree"
    lines = [line for line in start.splitlines() if line.strip() and not line.lstrip().startswith("#")]
    if any(TOML_TABLE.fullmatch(line.strip()) for line in lines):
        return "toml"
    pairs = sum(1 for line in lines if line.split("#")[0].rstrip().endswith(":") or ": " in line)
    return "tree" if lines and 2 * pairs > len(lines) else "shell"


def _found(sources: Sequence[Source], given: Mapping[str, str]) -> Found:
    found = Found((), (), (), tuple(sources), ())
    for source in sources:
        others = [other for other in sources if other is not source]
        found = _joined(found, _of_source(source, given, others))
    return found


def _joined(a: Found, b: Found) -> Found:
    started, sources = a.started + b.started, a.sources + b.sources
    return Found(a.candidates + b.candidates, a.launch + b.launch, started, sources, a.notes + b.notes)


def _of_source(source: Source, given: Mapping[str, str], beside: Sequence[Source]) -> Found:
    kind = kind_of(source)
    if kind == "shell":
        return _of_script(source, given, beside)
    if kind in ("page", "unit"):
        return _of_script(pages.commands(source) if kind == "page" else pages.unit(source), given, beside)
    if kind == "presets":
        models = tuple(Launch((), (script,), name=name) for name, script in pages.presets(source))
        return _of_launch(models[0], given, beside) if len(models) == 1 else _of_pools(Launch((), pools=models), given, beside)
    if kind == "modelfile":
        return Found(_candidates(pages.modelfile(source), source), (), (), (), ())
    if kind == "python":
        return Found(_candidates(python.settings(source), source, python.script_of(source.text)), (), (), (), ())
    if kind == "toml":
        return Found(_candidates(tables.settings(source), source), (), (), (), ())
    found = _of_launchers(source, given, beside)
    if found is not None:
        return found
    settings = with_flags(tree.settings(source))
    return Found(_candidates(settings, source), tuple(companions.environment(settings)), (), (), ())


def with_flags(settings: Sequence[Setting]) -> list[Setting]:
    """Return settings with those whose key is a flag under a heading ('MODEL_ARGS.--num-layers') under the flag alone."""
    return [Setting(one.key[one.key.index("--") :], one.value, one.span) if "--" in one.key else one for one in settings]


def _candidates(settings: Sequence[Setting], source: Source, script: str = "") -> tuple[Candidate, ...]:
    scores = [(program, program.recognises(settings, source, script)) for program in programs().values()]
    return tuple(Candidate(program, tuple(settings), score, source) for program, score in scores if score > 0)


def _of_launchers(source: Source, given: Mapping[str, str], beside: Sequence[Source]) -> Found | None:
    """Return what a manifest of a launcher says; None for a file of no launcher."""
    readers = [launcher.read for launcher in launchers().values()]
    launch = next((found for read in readers if (found := read(source)) is not None), None)
    if launch is None:
        return None
    if len(launch.pools) > 1:
        return _of_pools(launch, given, beside)
    return _of_launch(launch.pools[0] if launch.pools else launch, given, beside)


def _of_launch(launch: Launch, given: Mapping[str, str], beside: Sequence[Source]) -> Found:
    """Return what a launcher's file says: machines, and what its scripts start with its variables and files."""
    found = Found((), launch.facts, (), launch.files, ())
    for file in launch.files:
        if kind_of(file) not in ("shell", "page"):
            found = _joined(found, replace(_of_source(file, given, ()), started=()))
    for script in launch.scripts:
        found = _joined(found, _of_script(script, given, [*beside, *launch.files], launch.variables))
    return found


def _of_pools(launch: Launch, given: Mapping[str, str], beside: Sequence[Source]) -> Found:
    """Return what several pools of servers say together: the devices of all, and a sentence on each."""
    founds = [_of_launch(pool, given, beside) for pool in launch.pools]
    kept = [(pool, found) for pool, found in zip(launch.pools, founds, strict=True) if found.candidates]
    notes: list[str] = []
    total = 0
    for pool, found in kept:
        best = max(found.candidates, key=lambda one: one.score)
        facts = companions.facts_of(best, found).facts
        copies = facts.whole("replicas", 1)
        devices = facts.whole("tp", 1) * facts.whole("pp", 1) * copies
        notes.append(f"pool {pool.name or best.program.title}: {_pool_words(facts)}, {devices} devices")
        total += devices
    if len(kept) < 2:
        return kept[0][1] if kept else _joined(founds[0], Found((), (), (), (), ()))
    joined = founds[0]
    for found in founds[1:]:
        joined = _joined(joined, found)
    facts = [one for one in joined.launch if one.fact not in ("devices", "replicas", "nodes", "devices_per_node")]
    more = [
        Stated("pools", len(kept), "derived", None, "", "; ".join(notes)),
        Stated("all_devices", total, "derived", None, "", "of all pools"),
    ]
    return replace(joined, launch=(*facts, *more), notes=(*joined.notes, *notes))


def _pool_words(facts: Run) -> str:
    names = ("tp", "pp", "ep", "replicas")
    words = [f"{name} {in_words(facts.value(name))}" for name in names if name in facts and facts.value(name) != 1]
    return ", ".join(words) or "tp 1"


def _of_script(
    source: Source, given: Mapping[str, str], beside: Sequence[Source], variables: Mapping[str, str] | None = None
) -> Found:
    """Read a script: its directives, the programs that it starts, and the files that it writes."""
    from meshwise.programs.read import shell  # bash is loaded for scripts alone

    script = shell.read(source, given, beside, variables)
    started = [one for line in script.commands for one in _started(line, given, [*beside, *script.files])]
    candidates = [one for program in started for one in _of_started(program, source)]
    written = Found((), (), (), (), ())
    for file in script.files:
        if kind_of(file) != "shell":
            try:
                written = _joined(written, _of_source(file, given, ()))
            except UserError:
                continue  # a file that the script writes for other purposes
    launch = tuple(fact for launcher in launchers().values() for fact in launcher.directives(script.directives))
    return _joined(Found(tuple(candidates), launch, tuple(started), script.files, script.notes), written)


def _started(line: Command, given: Mapping[str, str], beside: Sequence[Source]) -> list[Started]:
    if line.words and line.words[0].text.startswith("--"):  # a file of arguments alone
        return [Started("", line.words, (), certain=line.certain, by=line.by)]
    return command.unwrap(line, given, beside)


def _of_started(started: Started, source: Source) -> Iterable[Candidate]:
    for program in programs().values():
        settings = flags.settings(started.words, program.takes)
        score = program.recognises(settings, source, started.program)
        if score > 0:
            yield Candidate(program, tuple(settings), score, source, started)


# Which program it is.


ABSENT = (".sh", ".sbatch", ".slurm", ".bash", ".yaml", ".yml")  # ends of the names of files that say what a command runs


def _chosen(found: Found, sources: Sequence[Source]) -> Candidate:
    """Return the likeliest program: of commands before files, since a command names its files; the surest, and of equals the last."""
    ranked = [one for one in found.candidates if one.started is not None] or _tied(found) or list(found.candidates)
    if not ranked:
        names = ", ".join(source.file for source in sources)
        known = ", ".join(program.title for program in programs().values())
        started = ", ".join(dict.fromkeys(quoted(one.program) for one in found.started if one.program))
        words = [text for one in found.started for text in (one.program, *(word.text for word in one.words))]
        absent = [text for text in words if text.endswith(ABSENT) and "://" not in text]
        if absent:
            raise UserError(f"{names}: it starts {', '.join(dict.fromkeys(absent))}, which was not given: give that file too")
        what = f"it starts {started}" if started else "no command with flags of a known program, and no known keys"
        raise UserError(f"{names}: no program that meshwise reads: {what}; expected one of {known}")
    best = max(ranked, key=lambda one: (one.program.name not in COMPANIONS, one.score))
    equal = [one for one in ranked if one.score == best.score and one.program.name == best.program.name]
    return equal[0] if not best.certain else equal[-1]


def _tied(found: Found) -> list[Candidate]:
    """Return the configuration files that started commands name, with what the commands say beside: `sft.py --config sft.yaml --bf16`."""
    tied: list[Candidate] = []
    for one in found.candidates:
        name = Path(one.source.name or one.source.file).name
        for started in found.started if one.program.name not in COMPANIONS else ():
            settings = flags.settings(started.words, one.program.takes)
            if any(isinstance(said.value, str) and Path(said.value).name == name for said in settings):
                tied.append(replace(one, settings=(*one.settings, *settings), started=started))
    return tied


MAX_CHOICES = 4  # values of a fact that are named where an undecided test chooses between them


def _agreed(variants: Sequence[Run], ways: Sequence[Mapping[str, int]]) -> Run:
    """Return the facts on which every variant of a command agrees; `ways`: for each variant, how the undecided tests go."""
    first = variants[0]
    said = {name for other in variants for name in other.values}
    differing = {name for name in said if any(first.value(name) != other.value(name) for other in variants)}
    places = {name: next(one for other in variants if (one := other.get(name))) for name in sorted(differing)}
    unknown = (
        Stated(name, None, "unknown", one.span, one.key, _choices([other.get(name) for other in variants], ways))
        for name, one in places.items()
    )
    return first.without(*differing).adding(unknown)


def _choices(stated: Sequence[Stated | None], ways: Sequence[Mapping[str, int]]) -> str:
    """Return the values that a fact may have, and what decides: 'fp16 or bf16, by $1 (train.sh:3)'."""
    values = ["not set" if one is None else in_words(one.value) for one in stated]
    texts = dict.fromkeys(values)
    listed = " or ".join([*texts][:MAX_CHOICES]) + (" or others" if len(texts) > MAX_CHOICES else "")
    tests = dict.fromkeys(text for way in ways for text in way)
    deciding = [text for text in tests if _decides(text, values, ways)] or [*tests]
    return f"{listed}, by {', '.join(deciding) or 'a branch that is not known'}"


def _decides(test: str, values: Sequence[str], ways: Sequence[Mapping[str, int]]) -> bool:
    """Return whether variants that differ in this test alone have different values."""
    groups: dict[tuple[tuple[str, int], ...], set[str]] = {}
    for value, way in zip(values, ways, strict=True):
        groups.setdefault(tuple(pair for pair in way.items() if pair[0] != test), set()).add(value)
    return any(len(group) > 1 for group in groups.values())
