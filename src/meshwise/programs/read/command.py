"""Take launchers off a command line: srun, torchrun, tune run, deepspeed, accelerate launch, mpirun, env, containers."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from meshwise.catalogue import files
from meshwise.programs.read.images import entry_of
from meshwise.programs.source import Command, Source, Word
from meshwise.runs.run import Span, Stated, Value

_TABLE: Any = files.table_of(files.BUILT_IN / "programs" / "starters.toml")
WRAPPERS, PROGRAMS, ALSO_WORDS = (frozenset(str(_TABLE[name]).split()) for name in ("wrappers", "programs", "also_words"))
SWITCHES: dict[str, frozenset[str]] = {name: frozenset(str(words).split()) for name, words in _TABLE["switches"].items()}
COUNTS: Mapping[str, Mapping[str, str]] = _TABLE["counts"]
PYTHON = re.compile(r"(?:.*/)?(?:python[\d.]*|pypy3?)$")
TORCHRUN = ("torch.distributed.run", "torch.distributed.launch", "torch.distributed.elastic.run")
HANDED = "COMMAND"  # the variable in which NeMo RL's job script is given what it starts


@dataclass(frozen=True)
class Started:
    """A program behind its launcher."""

    program: str  # the script or program: 'pretrain_gpt.py', 'vllm', 'torchtitan.train', 'axolotl'
    words: tuple[Word, ...]  # its arguments
    facts: tuple[Stated, ...]  # facts of the launcher and the environment: nodes, devices_per_node, devices, env:NAME
    launcher: str = ""
    """'torchrun', 'deepspeed', 'accelerate', 'srun', 'mpirun'; '' for none. accelerate's own flags (--config_file) stay in
    `launcher_words`."""
    launcher_words: tuple[Word, ...] = ()
    certain: bool = True
    by: tuple[tuple[str, int], ...] = ()
    """What decides whether, or how, it starts, where that is not known, with the way that it goes here."""


@dataclass
class _Found:
    """Facts that the words before the program state."""

    facts: list[Stated] = field(default_factory=list[Stated])
    launcher: str = ""
    launcher_words: tuple[Word, ...] = ()


def unwrap(command: Command, given: Mapping[str, str], beside: Sequence[Source] = ()) -> list[Started]:
    """Return the program that a command starts, without what starts it; nothing for a command that starts none."""
    words, found = list(command.words), _Found()
    environment = dict(command.environment)
    for _ in range(12):
        words = _assignments(words, environment)
        if not words:
            return []
        name = _base(words[0].text)
        after = _after_module(words)
        module = words[after - 1].text if after else ""
        if name in ("torchrun", "composer") or module in TORCHRUN:
            words = _launched(words[after or 1 :], "torchrun" if module else name, found)
        elif name == "tune" and len(words) > 1 and words[1].text == "run":  # torchtune hands these options to torchrun
            words = _launched(words[2:], "torchrun", found)
        elif name == "deepspeed" or module == "deepspeed.launcher.runner":
            words = _launched(words[after or 1 :], "deepspeed", found)
        elif (name == "accelerate" and len(words) > 1 and words[1].text == "launch") or module == "accelerate.commands.launch":
            words = _launched(words[after or 2 :], "accelerate", found)
        elif name in DOCKER and len(words) > 1 and words[1].text in ("run", "exec"):
            words = _contained(words, found, environment)
        elif name in WRAPPERS:
            words = _wrapped(words, name, found, environment)
        elif name not in PROGRAMS and (at := _behind_dashes(words)):
            why = f"{words[1].text if PYTHON.match(name) else name} may start it on several"
            found.facts.append(Stated("nodes", None, "unknown", words[0].span, name, why))
            words = words[at:]
        elif HANDED in environment and len(handed := _split(environment.pop(HANDED))) > 1:
            words = handed
        else:
            break
    if not words:
        return []
    program, arguments = _program(words, found.launcher)
    given_by = [(flag, environment[name]) for name, flag in _TABLE["flags"].get(program, {}).items() if name in environment]
    arguments = [*(word for flag, value in given_by for word in (Word(flag, value.span), value)), *arguments]
    facts = [*found.facts, *_environment(environment, program, {one.fact for one in found.facts})]
    started = Started(program, tuple(arguments), tuple(facts), found.launcher, found.launcher_words, command.certain, command.by)
    return [started] if program else []


def _base(text: str) -> str:
    return text.rpartition("/")[2]


def _assignments(words: list[Word], environment: dict[str, Word]) -> list[Word]:
    """Take `X=Y` from the front, as `env` and `ssh` leave them."""
    while words and (match := re.match(r"([A-Za-z_]\w*)=", words[0].text)):
        word = words[0]
        span = word.span._replace(start=word.span.start + match.end()) if word.span.writable else word.span
        environment[match.group(1)] = Word(word.text[match.end() :], span, word.unknown)
        words = words[1:]
    return words


def _after_module(words: Sequence[Word]) -> int:
    """Return the position after `python ... -m module`; 0 for another command."""
    if not PYTHON.match(words[0].text):
        return 0
    for at in range(1, min(len(words) - 1, 8)):
        if words[at].text == "-m":
            return at + 2
        if not words[at].text.startswith("-") and words[at - 1].text not in ("-X", "-W"):
            return 0
    return 0


def _launched(words: list[Word], launcher: str, found: _Found) -> list[Word]:
    """Read the options of torchrun, deepspeed or accelerate; return the script and its arguments."""
    at, module, counted = 0, False, set[str]()
    while at < len(words) and words[at].text.startswith("-"):
        name, equals, _ = words[at].text.partition("=")
        plain = name.lstrip("-").replace("_", "-")
        module |= plain in ("m", "module")
        takes = not equals and plain not in SWITCHES[launcher] and at + 1 < len(words)
        fact = COUNTS[launcher].get(plain)
        source = words[at + 1] if takes else _value_of(words[at], len(name) + 1)
        if fact is not None and (takes or equals):
            found.facts.append(_count(fact, source, name))
            counted.add(fact)
        elif launcher == "deepspeed" and plain in ("include", "i") and not source.unknown:
            found.facts += _included(source, name)
        at += 2 if takes else 1
    for fact, count in _TABLE["defaults"].get(launcher, {}).items():
        if fact not in counted:
            found.facts.append(Stated(fact, count, "default", None, launcher, f"default of {launcher}"))
    found.launcher, found.launcher_words = launcher, tuple(words[:at])
    rest = words[at:]
    return [Word("python", rest[0].span), Word("-m", rest[0].span), *rest] if module and rest else rest


def _included(word: Word, key: str) -> list[Stated]:
    """Return the devices of `--include host1:0,1@host2:0,1`."""
    hosts = [part.partition(":")[2].split(",") for part in word.text.split("@")]
    counts = {len(devices) for devices in hosts if devices != [""]}
    if len(counts) != 1:
        return []
    facts = [Stated("devices_per_node", counts.pop(), "derived", word.span, key, f"devices of {word.text}")]
    return [*facts, Stated("nodes", len(hosts), "derived", word.span, key, f"hosts of {word.text}")]


def _value_of(word: Word, length: int) -> Word:
    span = word.span
    exact = span.writable and span.end - span.start == len(word.text)
    return Word(word.text[length:], span._replace(start=span.start + length) if exact else span, word.unknown)


def _count(fact: str, word: Word, key: str) -> Stated:
    """Return a count; of an elastic `1:4` the larger one."""
    text = word.text.rpartition(":")[2]
    if word.unknown or not re.fullmatch(r"\d{1,9}", text):
        why = f"{word.unknown or word.text} is not known" if word.unknown else f"{word.text!r} is decided when it starts"
        return Stated(fact, None, "unknown", word.span, key, why)
    if ":" in word.text:
        return Stated(fact, int(text), "said", Span(word.span.file, word.span.line), key, f"at most, of {word.text}")
    return Stated(fact, int(text), "said", word.span, key)


def _wrapped(words: list[Word], name: str, found: _Found, environment: dict[str, Word]) -> list[Word]:
    """Return the command behind a wrapper: the first word that is a program, or the first that is no option."""
    family = "mpirun" if name in ("mpirun", "mpiexec", "orterun") else "srun" if name in ("srun", "sbatch", "salloc") else name
    start = next((i for i in range(1, len(words)) if _is_program(words, i)), None)
    if start is None:
        start = _first_plain(words, name)
    counts = COUNTS.get(family, {})
    for at in range(1, min(start, len(words))):
        _assignments(words[at : at + 1], environment)
        option, equals, _ = words[at].text.partition("=")
        short = re.fullmatch(r"-([A-Za-z])(\d+)", option)
        plain = short.group(1) if short else option.lstrip("-")
        if plain not in counts or not option.startswith("-") or (at + 1 == len(words) and not equals and not short):
            continue
        value = _value_of(words[at], len(option) + 1) if equals else _value_of(words[at], 2) if short else words[at + 1]
        if plain != "ntasks-per-node" or value.text != "1":  # one task of a node starts the others itself
            found.facts.append(_count(counts[plain], value, option[:2] if short else option))
    if family in ("srun", "mpirun"):
        found.launcher = found.launcher or family
        found.launcher_words = found.launcher_words or tuple(words[1:start])
    return words[start:]


DOCKER = ("docker", "podman", "nerdctl")


def _contained(words: list[Word], found: _Found, environment: dict[str, Word]) -> list[Word]:
    """Return the command inside `docker run [options] IMAGE [arguments]`: with the program that the image starts, where it is known."""
    at, entry = 2, ""
    while at < len(words) and words[at].text.startswith("-"):
        name, equals, _ = words[at].text.partition("=")
        alone = bool(equals) or name in SWITCHES["docker"] or (re.fullmatch(r"-[itdP]+", name) is not None)
        value = _value_of(words[at], len(name) + 1) if equals else words[at + 1] if at + 1 < len(words) and not alone else None
        if value is not None and name in ("-e", "--env"):
            _assignments([value], environment)
        if value is not None and name == "--entrypoint":
            entry = value.text
        if value is not None and name == "--gpus":
            found.facts += _visible(value)
        at += 1 if alone else 2
    if at >= len(words):
        return []
    rest = words[at + 1 :]
    front = (entry,) if entry else entry_of(words[at].text)
    started = bool(rest) and _is_program(words, at + 1)
    return rest if started and not entry else [*(Word(text, words[at].span) for text in front), *rest]


def _visible(word: Word) -> list[Stated]:
    """Return the devices of `--gpus 4` or `--gpus device=0,1`; nothing for all."""
    text = word.text.strip("\"'")
    named = re.fullmatch(r"device=(\d+(?:,\d+)*)", text)
    count = named[1].count(",") + 1 if named else int(text) if re.fullmatch(r"\d{1,4}", text) else 0
    return [Stated("devices_per_node", count, "said", Span(word.span.file, word.span.line), "--gpus")] if count else []


def _is_program(words: Sequence[Word], at: int) -> bool:
    """Return whether a word starts a program: a known name, Python, a script, an assignment for `env`, or another wrapper."""
    text = words[at].text
    if text.startswith("-") or words[at - 1].text in ("--container-image", "--chdir", "-D", "--output", "-o", "--error", "-e"):
        return False
    base = _base(text)
    if base in PROGRAMS or PYTHON.match(text) or (base.endswith((".py", ".sh")) and ":" not in text):
        return True
    wraps = base in WRAPPERS - ALSO_WORDS
    return wraps and words[at - 1].text not in ("-J", "--job-name")


def _split(word: Word) -> list[Word]:
    """Return the words of a command that is the value of a variable."""
    try:
        return [Word(text, word.span) for text in shlex.split(word.text)] if not word.unknown else []
    except ValueError:
        return []


def _behind_dashes(words: Sequence[Word]) -> int:
    """Return where the command begins that a script of the user's own is given: `python submit.py --nodes 8 -- accelerate launch ...`."""
    at = next((number + 1 for number, word in enumerate(words) if word.text == "--"), 0)
    return at if 0 < at < len(words) and _is_program(words, at) else 0


def _first_plain(words: Sequence[Word], name: str) -> int:
    """Return the first word that is neither an option nor looks like its value."""
    skip = _TABLE["skips"].get(name, 0)
    for at in range(1 + skip, len(words)):
        before = words[at - 1].text
        value_of_option = before.startswith("-") and "=" not in before and name not in ("env", "nohup", "time", "exec", "sudo")
        if not words[at].text.startswith("-") and not value_of_option:
            return at
    return len(words)


def _program(words: Sequence[Word], launcher: str) -> tuple[str, Sequence[Word]]:
    """Return the program and its arguments; '' where Python is given a program as text."""
    if PYTHON.match(words[0].text):
        at = _after_module(words)
        if at:
            return words[at - 1].text, words[at:]
        at = 1
        while at < len(words) and words[at].text.startswith("-"):
            if words[at].text in ("-c", "-"):
                return "", ()
            at += 2 if words[at].text in ("-X", "-W") else 1
        return (_base(words[at].text), words[at + 1 :]) if at < len(words) else ("", ())
    return _base(words[0].text), words[1:]


def _environment(environment: Mapping[str, Word], program: str, counted: set[str]) -> list[Stated]:
    """Return the environment as facts. CUDA_VISIBLE_DEVICES counts the devices if nothing else does."""
    facts: list[Stated] = []
    for name, word in environment.items():
        value: Value | None = None if word.unknown else word.text
        note = f"{word.unknown} is not known" if word.unknown else ""
        facts.append(Stated(f"env:{name}", value, "unknown" if word.unknown else "said", word.span, name, note))
    for name, fact in _TABLE["environment"].get(program, {}).items():
        if name in environment and fact not in counted:
            facts.append(_count(fact, environment[name], name))
            counted.add(fact)
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    listed = visible and not visible.unknown and re.fullmatch(r"\d+(,\d+)*", visible.text)
    if visible and listed and not counted & {"devices_per_node", "devices"}:
        count = visible.text.count(",") + 1
        facts.append(Stated("devices_per_node", count, "derived", visible.span, "CUDA_VISIBLE_DEVICES", "devices that it names"))
    return facts
