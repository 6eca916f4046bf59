"""Export: a layout of a plan as the files of a program and of a launcher."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from meshwise.catalogue import files
from meshwise.cost.axes import AXES, NAMES, layout_name
from meshwise.cost.layout import Layouts
from meshwise.cost.train.step import peak
from meshwise.errors import UserError
from meshwise.plan.rl.plan import RolloutPlan
from meshwise.plan.serve.plan import ServePlan
from meshwise.plan.train.plan import TrainPlan
from meshwise.plan.train.rules import broken
from meshwise.programs import setup as setups
from meshwise.programs.program import Job, Program, Refusal, Setup, find_launcher, find_program, programs
from meshwise.programs.train import recipe
from meshwise.units import GIB

CUTS = ("tp", "pp", "cp")
DOES = {"serve": "serves", "train": "trains", "rl": "trains on generated answers"}
MADE_FOR = {"serve": "serving", "train": "training", "rl": "training on generated answers"}
MAX_REFUSALS = 6  # refusals in a row: the nearest layout to one may be refused for another reason


@dataclass(frozen=True)
class Exported:
    """The files of an export, and how to start them."""

    files: Mapping[str, str]  # texts by name; the first one starts the job
    start: str  # the command that starts the job, in the folder of the files
    check: str  # the command with which the program's own parser checks the files; '' where there is none
    program: str
    version: str

    def save(self, folder: str | Path) -> list[Path]:
        """Write the files into a folder."""
        target = Path(folder)
        target.mkdir(parents=True, exist_ok=True)
        for name, text in self.files.items():
            files.write(target / name, text)
        return [target / name for name in self.files]

    def to_json(self) -> dict[str, Any]:
        return {
            "program": self.program, "version": self.version, "start": self.start, "check": self.check,
            "files": dict(self.files),
        }  # fmt: skip

    def rows(self) -> list[dict[str, Any]]:
        return [{"file": name, "lines": text.count("\n")} for name, text in self.files.items()]


def export(
    plan: TrainPlan | ServePlan | RolloutPlan,
    to: str,
    launcher: str = "",
    row: int = 1,
    *,
    name: str = "",
    hours: float = Job.hours,
    preflight: bool = False,
) -> Exported:
    """Return one layout of a plan as the files of a program, or raise UserError with the nearest layout that it can say."""
    program = find_program(to)
    if program.write is None:
        raise UserError(f"--to {to}: {program.title} is only read ('meshwise check'), not written")
    kind = "serve" if isinstance(plan, ServePlan) else "rl" if isinstance(plan, RolloutPlan) else "train"
    if kind != program.kind:
        raise UserError(f"--to {to}: {program.title} {DOES[program.kind]}, and the plan is for {MADE_FOR[kind]}")
    setup = _setup(plan, row)
    if kind == "rl":
        _check_program(program, setup)
    else:
        _check_adapters(program, setup)
    refusals = list(program.refuse(setup))
    if refusals and kind == "rl":
        raise UserError("; ".join(refusal.why for refusal in refusals))
    if refusals:
        raise UserError(_refused(program, setup, refusals))
    setup = replace(setup, header=(*setup.header, *_header(program, setup)))
    written = program.write(setup)
    starter = find_launcher(launcher or "torchrun")
    job = Job(
        name=name or _name(setup), nodes=setup.whole("nodes"), devices_per_node=setup.whole("devices_per_node"),
        command=written.command, starter=written.starter, environment=written.environment, others=written.others,
        header=setup.header, files=written.files, chip=setup.text("chip"), hours=hours, preflight=preflight,
    )  # fmt: skip
    made, start = _named(starter.write(job), starter.start, "serve" if kind == "serve" else "train")
    made |= {name: text for name, text in written.files.items() if name not in made}
    return Exported(made, start, program.check, program.title, program.version)


def _named(made: Mapping[str, str], start: str, stem: str) -> tuple[dict[str, str], str]:
    """Return a launcher's files and its command with names that say whether they train or serve."""
    other = "train" if stem == "serve" else "serve"
    names = {name: stem + name.removeprefix(other) for name in made if name.startswith((f"{other}.", f"{other}_"))}
    for old, new in names.items():
        start = start.replace(old, new)
        made = {names.get(name, name): text.replace(old, new) for name, text in made.items()}
    return dict(made), start


def _setup(plan: TrainPlan | ServePlan | RolloutPlan, row: int) -> Setup:
    """Return the facts of a row of a plan."""
    if isinstance(plan, ServePlan):
        from meshwise.programs.serve import setup

        return setup.of_plan(plan, row)
    if isinstance(plan, RolloutPlan):
        from meshwise.programs.rl import facts

        return facts.of_plan(plan, row)
    return setups.of_plan(plan, row)


def _check_program(program: Program, setup: Setup) -> None:
    """Refuse a plan of another program, whose modes, layouts and objectives differ."""
    if setup.plan.program != program.framework:
        raise UserError(
            f"--to {program.name}: the plan was made for {setup.plan.framework}, which splits devices differently; plan again with "
            f"--framework {program.framework}"
        )


def _name(setup: Setup) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in setup.model.rpartition("/")[2].lower()).strip("-")


def _header(program: Program, setup: Setup) -> list[str]:
    """Return the lines that a program adds to a header: the version it was written for, and how to check it."""
    lines = [f"Written for {program.title} {program.version}."]
    made_for = str(getattr(setup.plan, "framework", ""))
    ours = ("", _squeezed(program.framework), _squeezed(program.title), *(["trl"] if program.framework == "accelerate" else []))
    if program.kind == "train" and _squeezed(made_for.partition(" with ")[0]) not in ours:
        lines.append(f"The plan was made for {made_for}: {program.title} may be faster or slower, and need other memory.")
    on = getattr(setup.plan.ask, "on", "") if setup.plan is not None else ""
    release = getattr(setup.plan.ask, "release", "") if setup.plan is not None else ""
    if release:
        lines.append(f"The plan was made for release {release} of {made_for}, which no setting chooses: install it.")
        on += f" --set release={release}"
    lines.append(f"Check: meshwise check FILE --on {on}" + (f"; or {program.check}" if program.check else ""))
    return lines


def _squeezed(name: str) -> str:
    return files.squeeze(name).removesuffix("lm")


# What a program cannot say.


def _check_adapters(program: Program, setup: Setup) -> None:
    """Refuse a plan with adapters or frozen layers for a program that has no key for them."""
    if program.kind != "train":
        return
    for fact, own, words in (("rank", "rank", "adapters"), ("frozen_layers", "trained_layers", "frozen layers")):
        if fact in setup.values and program.key_of(own) is None:
            able = [name for name, one in programs().items() if one.write and one.kind == "train" and one.key_of(own)]
            raise UserError(f"{program.title} has no setting for {words}; expected --to {' or '.join(able)}")


def _refused(program: Program, setup: Setup, refusals: list[Refusal]) -> str:
    """Return the error for a layout that a program cannot express, with the nearest one that it can."""
    why = "; ".join(dict.fromkeys(refusal.why for refusal in refusals))
    said = f" cannot say {layout_name(_row(setup))}" if program.kind == "train" else ""
    start = f"{program.title}{said}: {why}"
    near = nearest(program, setup, refusals)
    if near is None:
        return start
    words = _fixes(program, setup, near)
    return f"{start}; the nearest layout that it can say is {layout_name(_row(near))}{_fit(near)}: {words}"


def _row(setup: Setup) -> dict[str, int | str]:
    return {name: setup.values[name] for name in NAMES}  # pyright: ignore[reportReturnType]


def nearest(program: Program, setup: Setup, refusals: list[Refusal]) -> Setup | None:
    """Return the nearest layout on the same devices that a program can express; None if no layout helps."""
    for _ in range(MAX_REFUSALS):
        if not refusals:
            return setup
        if program.kind == "serve" or any(not refusal.instead for refusal in refusals):
            return None
        values = dict(setup.values)
        for refusal in refusals:
            values |= refusal.instead
        used = _product(values, ("dp_replicate", "dp_shard", *CUTS))
        values["dp_shard"] = _product(values, ("dp_shard",)) * max(1, setup.whole("devices") // used)
        dp = _product(values, ("dp_replicate", "dp_shard"))
        if values["zero"] == 0:
            values |= {"dp_replicate": dp, "dp_shard": 1}
        mbs = setup.whole("mbs")
        while mbs > 1 and setup.whole("batch") % (dp * mbs):
            mbs -= 1
        values |= {"dp": dp, "mbs": mbs, "accumulation": max(1, setup.whole("batch") // (dp * mbs))}
        values |= {axis.name: axis.default for axis in AXES if axis.within and values[axis.within] == 1}
        setup = replace(setup, values=values)
        refusals = list(program.refuse(setup))
    return None


def _product(values: Mapping[str, Any], axes: Sequence[str]) -> int:
    return math.prod(int(values[axis]) for axis in axes)


def _fixes(program: Program, setup: Setup, near: Setup) -> str:
    """Return the command that plans the nearest layout."""
    ask = setup.plan.ask
    names = [name for name in NAMES if near.values[name] != setup.values[name] or name in ("tp", "pp")]
    fixed = ",".join(f"{name}={near.values[name]}" for name in names)
    choices = ("precision", "optimizer", *recipe.FACTS)
    changed = {name: near.values[name] for name in choices if near.values.get(name, "") != setup.values.get(name, "")}
    return replace(ask, framework=program.framework, fix=(fixed,), allow=(), **changed).command()


def _fit(near: Setup) -> str:
    """Return whether the nearest layout fits, in words."""
    q = near.plan.question()
    layouts = Layouts.from_row(_row(near))
    rules = [rule for rule in broken(q, layouts) if not rule.startswith("the framework")]
    if rules:
        return f" (which breaks a rule: {rules[0]})"
    need = float(peak(q, layouts)[0])
    return f" ({need / GIB:.0f} GiB of {q.chip.memory / GIB:.0f}{'' if need <= q.chip.memory else ', which does not fit'})"
