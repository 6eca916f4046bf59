"""The folder of an earlier run: whether to resume from its checkpoints, or to refuse it."""

from pathlib import Path

from meshwise.errors import UserError
from meshwise.run.train.launch import Launch
from meshwise.workers.trainer.contract.marker import (
    all_damaged,
    complete_steps,
    damaged_steps,
    format_refusal,
    read_marker,
    resume_refusal,
)


def check(ready: Launch, out: Path) -> None:
    """Refuse a run that would overwrite the steps of an earlier one, or resume it with samples in another order."""
    folder, s = out / "checkpoints", ready.settings
    steps, damaged = complete_steps(folder), damaged_steps(folder)
    if not s.checkpoint_every:
        if steps or damaged:
            raise UserError(
                f"--out {out} holds checkpoints of an earlier run, up to step {max(steps + damaged)}: "
                "resume it with --checkpoint-every, or choose another --out"
            )
        return
    if damaged and not steps:
        raise UserError(all_damaged(folder, damaged))
    if steps and (refused := format_refusal(folder / f"step-{steps[0]}")):
        raise UserError(refused)
    newest = next(filter(None, (read_marker(folder / f"step-{step}") for step in steps)), None)
    if newest and (refused := resume_refusal(folder, newest.trained, s)):
        raise UserError(refused)
