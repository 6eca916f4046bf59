"""RolloutPlan: how to train on answers that the model generates: every split of the devices, the fastest first."""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from meshwise.catalogue import files, records
from meshwise.catalogue.rl_programs import USUAL, Overheads, RlProgram, Trainer, find_rl_program, overheads_of, rl_programs
from meshwise.cost.train.question import Question
from meshwise.cost.work import OBJECTIVES
from meshwise.errors import DoesNotFit, UserError, nearest, quoted
from meshwise.plan.ask import TrainAsk
from meshwise.plan.rl import lengths
from meshwise.plan.rl.lengths import Answers
from meshwise.plan.rl.splits import Setting, Split, splits
from meshwise.plan.train import lookup, remedies


@dataclass(frozen=True, kw_only=True)
class RolloutPlan:
    """The splits of the devices for a question, the fastest first."""

    kind: ClassVar[str] = "rollout"
    format: ClassVar[int] = 1
    """Number of the file format: a plan.json with another one is refused."""
    ask: TrainAsk
    splits: tuple[Split, ...]
    program: str
    """Key of the program."""
    framework: str
    """Its name, and that of the training framework of the fastest split."""
    answers: int
    """Answers per step."""
    mean_answer: float
    longest_answer: float
    notes: tuple[str, ...] = field(default=())

    @property
    def best(self) -> Split:
        return self.splits[0]

    @property
    def command(self) -> str:
        return self.ask.command()

    def to_json(self) -> dict[str, Any]:
        return {"format": self.format, "kind": self.kind, **records.printable(records.plain(self))}

    def save(self, path: str | Path) -> Path:
        """Write the plan as JSON, which `meshwise.load` and `export` read."""
        files.write(Path(path), json.dumps(self.to_json(), indent=2, ensure_ascii=False, allow_nan=False) + "\n")
        return Path(path)

    def rows(self) -> list[dict[str, Any]]:
        """Return one flat dict per split, with the columns of `--csv`."""
        from meshwise.models.count import flat

        return [flat(records.plain(split)) for split in self.splits]


def read(path: Path) -> RolloutPlan:
    """Read a plan.json that `save` wrote. UserError for another format or kind, or a damaged one."""
    table = records.plan_table(path, RolloutPlan.format, RolloutPlan.kind)
    try:
        made = records.restore(RolloutPlan, {key: value for key, value in table.items() if key not in ("format", "kind")})
        if not made.splits:
            raise ValueError("it has no splits")
        return made
    except (KeyError, TypeError, ValueError, OverflowError, UserError) as error:
        raise UserError(f"{path}: a damaged plan ({error}); make it again") from None


def make(ask: TrainAsk, coefficients: Overheads | None = None) -> RolloutPlan:
    """Evaluate every split. DoesNotFit where none does. `coefficients`: other overheads, such as a fit without the steps of a program."""
    s = setting(ask, coefficients)
    found = sorted(splits(s), key=lambda split: split.step)
    if not found:
        helps = remedies.needed_changes(ask, lambda other: _fits(other, coefficients))
        told = f"; {' and '.join(helps)} would fit" if helps else ""
        raise DoesNotFit(
            f"{s.q.model.name} with {ask.objective} does not fit on {s.q.cluster.name} with {s.program.name}, {_tried(s)}{told}"
        )
    best = found[0]
    return RolloutPlan(
        ask=ask, splits=tuple(found[: ask.top]), program=s.program.key, framework=f"{s.program.name} {s.program.release}, {best.framework}",
        answers=s.answers.number, mean_answer=s.answers.mean, longest_answer=s.answers.longest, notes=_notes(s, best),
    )  # fmt: skip


def _fits(ask: TrainAsk, coefficients: Overheads | None) -> bool:
    """Return whether any split of a question fits; False for one that cannot be asked."""
    try:
        return next(splits(setting(ask, coefficients)), None) is not None
    except UserError:
        return False


def setting(ask: TrainAsk, coefficients: Overheads | None = None) -> Setting:
    """Look up everything that a question names. UserError for what cannot be asked together."""
    if not ask.model:
        raise UserError("missing MODEL: a preset, HF id, config.json or .gguf")
    if not OBJECTIVES[ask.objective].generates:
        expected = " or ".join(name for name, one in OBJECTIVES.items() if one.generates)
        raise UserError(f"--objective {ask.objective} generates no answers; expected {expected}")
    if not 0 < ask.prompt < ask.seq:
        raise UserError(f"--prompt {ask.prompt:,}: expected fewer tokens than --seq {ask.seq:,}, which holds prompt and answer")
    if lookup.mixed(ask):
        raise UserError(f"{ask.objective} is planned on one kind of device")
    program, trainers = program_of(ask)
    _check(ask, program)
    questions = tuple((one, _question(ask, one)) for one in trainers)
    if ask.rollout_devices:
        _check_devices(ask, questions[0][1].cluster.devices, questions[0][1].cluster.node.devices)
    return Setting(ask, program, questions, answers_of(ask), coefficients or overheads_of())


def _question(ask: TrainAsk, trainer: Trainer) -> Question:
    """Return the training question with one framework of the program, without a reference where none is wanted."""
    q = lookup.question(replace(ask, framework=trainer.framework))
    if ask.reference or not q.work.objective.reference:
        return q
    objective = replace(q.work.objective, reference=False, forwards=q.work.objective.forwards - 1)
    return replace(q, work=replace(q.work, objective=objective))


def program_of(ask: TrainAsk) -> tuple[RlProgram, tuple[Trainer, ...]]:
    """Return the program that a question names and the frameworks that it may train with. A training framework stands for the first program
    that runs it."""
    known = rl_programs()
    if not ask.framework:
        usual = known[USUAL]
        if ask.objective in usual.objectives:
            return usual, usual.trainers
    if program := find_rl_program(ask.framework):
        return program, program.trainers
    for program in sorted(known.values(), key=lambda one: one.key != USUAL):
        chosen = tuple(one for one in program.trainers if one.framework == ask.framework.lower())
        if chosen:
            return program, chosen
    names = ", ".join(known)
    raise UserError(
        f"--framework {quoted(ask.framework)} trains on no generated answers; expected {names}{nearest(ask.framework, known)}"
    )


def _check(ask: TrainAsk, program: RlProgram) -> None:
    """Refuse what the program cannot do, with the nearest that works."""
    if ask.objective not in program.objectives:
        others = [one.key for one in rl_programs().values() if ask.objective in one.objectives]
        raise UserError(
            f"{program.name} has no {ask.objective}; expected --framework {' or '.join(others)}, "
            f"or --objective {' or '.join(program.objectives)}"
        )
    if ask.mode and ask.mode not in program.modes:
        raise UserError(f"--mode {ask.mode}: {program.name} {program.release} has {' and '.join(program.modes)}")
    if ask.rollout_devices and ask.mode == "colocated":
        raise UserError("--rollout-devices only generate, and with --mode colocated all devices do both: drop one of them")
    if ask.partial and not program.partial:
        raise UserError(f"--partial: {program.name} {program.release} ends a step with its longest answer")
    if ask.finetune and lookup.parse(ask.finetune).adapts and not program.adapters:
        raise UserError(
            f"--finetune {ask.finetune}: {program.name} {program.release} trains no adapters; expected --finetune full"
        )
    if ask.objective == "gkd" and not ask.teacher:
        raise UserError("--objective gkd needs --teacher MODEL: the model whose probabilities are learnt")
    for name, objectives in (("teacher", ("gkd",)), ("critic", ("ppo",))):
        if getattr(ask, name) and ask.objective not in objectives:
            raise UserError(f"--{name} takes part in --objective {' or '.join(objectives)}, not in {ask.objective}")
    if ask.reward and ask.objective == "gkd":
        raise UserError("--reward: gkd learns from a teacher and has no reward")
    if ask.answer and ask.lengths:
        raise UserError("--answer and --lengths both state the tokens of answers; give one of them")


def _check_devices(ask: TrainAsk, total: int, inside: int) -> None:
    if ask.rollout_devices >= total or (total > inside and ask.rollout_devices % inside):
        parts = f"whole nodes of {inside}" if total > inside else "fewer"
        raise UserError(f"--rollout-devices {ask.rollout_devices} of {total}: expected {parts}, so that some devices train")


def answers_of(ask: TrainAsk) -> Answers:
    """Return the lengths of the answers of a step: measured ones, a mean with the longest, or all as long as --seq allows."""
    number, limit = ask.batch * ask.answers, ask.seq - ask.prompt
    if ask.lengths:
        return lengths.read(ask.lengths, number, limit)
    mean, _, longest = ask.answer.partition(":")
    most = int(longest or limit)
    if ask.answer and max(int(mean), most) > limit:
        raise UserError(
            f"--answer {ask.answer}: a prompt of {ask.prompt:,} leaves {limit:,} of --seq {ask.seq:,}; "
            "expected no longer answers, or a longer --seq"
        )
    return Answers(number, float(mean or limit), float(most))


def _tried(s: Setting) -> str:
    if s.ask.mode == "colocated" or s.program.modes == ("colocated",):
        return "with training and generation on the same devices"
    return (
        "neither with training and generation on the same devices nor apart"
        if not s.ask.mode
        else "with some devices that generate"
    )


def _notes(s: Setting, best: Split) -> tuple[str, ...]:
    ask, o = s.ask, s.overheads
    notes: list[str] = []
    if not ask.answer and not ask.lengths:
        notes.append(
            f"every answer is assumed to have {s.answers.longest:,.0f} tokens: state their mean and the longest with --answer MEAN:LONGEST"
        )
    if not ask.framework:
        notes.append(
            f"{s.program.name} is assumed; --framework {', '.join(key for key in rl_programs() if key != s.program.key)} are others"
        )
    if best.together:
        where = "moved to host memory while it generates" if s.program.offloads else "kept while it generates"
        notes.append(
            f"devices in turn: the engine has {best.engine_share:.0%} of the memory, and the state of training is {where}"
        )
    notes.append(f"coefficients of {o.fitted_on}; intervals are those of programs that were left out")
    return (*notes, *s.q.cluster.notes)
