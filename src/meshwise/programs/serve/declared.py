"""Declare serving programs: each is recognised by its command, and refuses plans that split a model in another way."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from meshwise.programs.program import Form, Key, Program, Refusal, Setup, Written, no_refusals, plain_words, same_facts
from meshwise.programs.read.flags import POSITIONAL
from meshwise.programs.serve import setup
from meshwise.programs.source import Setting, Source
from meshwise.runs.run import Run, Value

SEVERAL_SERVERS = (
    "prompts and outputs have servers of their own, and one command starts one: 'meshwise serve' prints all of them; --to dynamo writes "
    "them as one deployment"
)
CLIENTS = ("bench", "chat", "complete", "run-batch", "collect-env", "list", "ps", "pull", "create")
"""Verbs of servers' commands that start no server."""
CERTAINTY = 30  # how surely a command is of the program that it starts


def serving(
    name: str,
    title: str,
    version: str,
    *,
    write: Callable[[Setup], Written],
    keys: tuple[Key, ...] = (),
    form: Form = "flags",
    engine: str,
    splits: tuple[str, ...] = ("tensor",),
    commands: tuple[str, ...] = (),
    refuse: Callable[[Setup], Iterable[Refusal]] = no_refusals,
    wording: Callable[[Setup], Mapping[str, Value]] = plain_words,
    meaning: Callable[[Run], Run] = same_facts,
    in_file: Callable[[Sequence[Setting]], int] | None = None,
    refers: Mapping[str, str] | None = None,
    pools: bool = False,
    check: str = "",
) -> Program:
    """Return a serving program. `engine`: the engine of the catalogue that predicts it. `splits`: how it splits a model; none: `refuse`
    says. `in_file`: how surely the settings of a file alone are its own. `pools`: whether its files hold servers of several roles."""

    def refused(given: Setup) -> Iterable[Refusal]:
        if given.whole("prefill_replicas", 0) and not pools:
            yield Refusal(SEVERAL_SERVERS, {})
        if splits:
            yield from setup.refused(given, title, engine, *splits)
        yield from refuse(given)

    def recognises(settings: Sequence[Setting], source: Source | None, script: str) -> int:
        if not script and in_file is not None:
            return in_file(settings)
        client = any(one.key == POSITIONAL and one.value in CLIENTS for one in settings[:1])
        return CERTAINTY if script in commands and not client else 0

    return Program(
        name=name, title=title, version=version, kind="serve", framework=engine, form=form, keys=keys, write=write,
        refuse=refused, wording=wording, meaning=meaning, recognises=recognises, refers=refers or {}, check=check,
    )  # fmt: skip
