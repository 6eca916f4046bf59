"""Training on generated answers on a terminal: a table of the splits of the devices, and the bytes of each role."""

from rich.console import RenderableType

from meshwise.plan.rl.plan import PHASES, RolloutPlan, Split
from meshwise.ui.views.plan import setting
from meshwise.ui.views.tables import Column, Table, bullets, heading, paragraphs, wrapped
from meshwise.units import GIB


def rollout_view(plan: RolloutPlan, width: int) -> RenderableType:
    """Return everything that `plan --objective grpo` prints except the commands."""
    ask, best = plan.ask, plan.best
    answers = f"{ask.batch:,} prompts of {ask.prompt:,} tokens, {ask.answers} answers each of {ask.seq - ask.prompt:,}"
    title = heading([f"{ask.model} on {ask.on}: {answers}", setting(ask, plan.framework)], width)
    notes = [wrapped(f"note: {note}", width, indent="  ") for note in plan.notes]
    return paragraphs(title, [Table(_columns(), plan.splits).fitted(width)], bullets(_sentences(best), width), notes)


def _columns() -> list[Column[Split]]:
    def phase(name: str) -> Column[Split]:
        return Column(f"{name} s", lambda split: f"{split.phases[name]:.3g}", rank=2)

    return [
        Column("devices", lambda split: split.name, text=True),
        Column("s/step", lambda split: f"{split.step:.4g}"),
        *(phase(name) for name in PHASES),
        Column("answers/s", lambda split: f"{split.answers_per_second:.3g}", rank=3),
        Column("tokens/s", lambda split: f"{split.tokens_per_second:,.0f}", rank=4),
        Column("training", lambda split: split.train_layout, text=True, rank=5),
        Column("generation", lambda split: split.rollout_layout, text=True, rank=6),
    ]


def _sentences(best: Split) -> list[str]:
    """Return the bytes of each role while devices train and while they generate, and the longest phase, of the fastest split."""
    slowest = max(best.phases, key=lambda name: best.phases[name])
    share = 100 * best.phases[slowest] / sum(best.phases.values())
    states = best.peaks["rollout"] - sum(best.memory[role] for role in ENGINE)
    trained = _listed(best, set(best.memory) - set(ENGINE))
    return [
        f"GiB per device while training, {best.name}: {trained}; {best.peaks['training'] / GIB:.1f} in all.",
        f"While generating: {f'states of training {states / GIB:.1f}, ' * (states >= GIB / 20)}{_listed(best, set(ENGINE))}; "
        f"{best.peaks['rollout'] / GIB:.1f} in all.",
        f"The longest phase is {slowest} ({share:.0f}% of the phases' time); {best.at_once:,} answers are generated at once.",
    ]


ENGINE = ("engine weights", "engine cache")


def _listed(split: Split, roles: set[str]) -> str:
    return ", ".join(f"{role} {size / GIB:.1f}" for role, size in split.memory.items() if role in roles and size >= GIB / 20)
