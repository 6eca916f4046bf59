"""Facts of training on generated answers: of one split of a plan, for the writers, and of a file, as the question that it asks."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from meshwise.cost.finetune import parse
from meshwise.errors import UserError
from meshwise.models import find
from meshwise.plan.ask import TrainAsk
from meshwise.plan.rl.plan import RolloutPlan
from meshwise.plan.rl.splits import Split
from meshwise.plan.rl_fields import NO_MODEL
from meshwise.plan.train import lookup
from meshwise.programs.program import Setup
from meshwise.programs.train import adapters
from meshwise.runs.run import Run, Stated, Value
from meshwise.version import VERSION

NEEDED = {
    "policy": "the model", "prompts": "the prompts of a step", "answers": "the answers of a prompt", "response": "the longest answer",
}  # fmt: skip
"""Facts without which a file asks no question."""
PROMPT_TOKENS = 512  # tokens of a prompt where a file states none, as in every one of these programs


def of_plan(plan: RolloutPlan, number: int = 1) -> Setup:
    """Return the facts of one split: the best, or the one in row `number` of its table."""
    if not 1 <= number <= len(plan.splits):
        raise UserError(f"--row {number}: the plan has {len(plan.splits)} splits")
    split, ask = plan.splits[number - 1], plan.ask
    q = lookup.question(replace(ask, framework=split.framework))
    inside = q.cluster.node.devices
    values: dict[str, Value] = dict(split.train_axes)
    values |= {
        "policy": find.hub_id(ask.model), "objective": ask.objective, "prompts": ask.batch, "answers": ask.answers, "prompt": ask.prompt,
        "response": ask.seq - ask.prompt, "seq": ask.seq, "nodes": q.cluster.node_count, "devices_per_node": inside,
        "devices": q.cluster.devices, "chip": q.chip.key, "mode": split.mode, "train_devices": split.train_devices,
        "rollout_devices": 0 if split.together else split.rollout_devices, "strategy": split.framework,
        "engine_tp": split.engine_tp, "engine_share": round(split.engine_share, 2), "eager": ask.eager,
        "updates": ask.updates, "update_prompts": -(-ask.batch // ask.updates), "packed": (ask.rows or "packed") == "packed",
        "partial": ask.partial, "dp": int(split.train_axes["dp_replicate"]) * int(split.train_axes["dp_shard"]),
        "recomputes": split.train_axes["recompute"] != "none", "reads_reference": q.work.objective.reference and ask.reference,
    }  # fmt: skip
    values |= _others(ask)
    values |= adapters.facts_of(q.model, q.work.finetune) if parse(ask.finetune or "full").adapts else {}
    return Setup(values, {}, find.hub_id(ask.model), header(plan, split), plan)


def _others(ask: TrainAsk) -> dict[str, Value]:
    """Return the models beside the policy."""
    found: dict[str, Value] = {}
    if ask.objective == "ppo":
        found["critic_model"] = find.hub_id(ask.critic or ask.model)
    named = ask.reward or (ask.model if ask.objective == "ppo" else "function")
    if named not in NO_MODEL:
        found["reward_model"] = find.hub_id(named)
    if ask.teacher:
        found["teacher_model"] = find.hub_id(ask.teacher)
    return found


def header(plan: RolloutPlan, split: Split) -> tuple[str, ...]:
    """Return what a file says about its plan: the command, the split and the prediction."""
    low, high = split.interval
    return (
        f"Made by meshwise {VERSION} from: {plan.command}",
        f"Devices: {split.name}; training {split.train_layout} ({split.framework}), generation {split.rollout_layout}",
        f"Predicted: {split.step:.4g} s/step ({low:.3g} to {high:.3g}): "
        + ", ".join(f"{name} {seconds:.3g}" for name, seconds in split.phases.items()),
    )


def tokens_of(setup: Setup) -> int:
    """Return the tokens of a micro-batch of a device."""
    return setup.whole("mbs") * setup.whole("seq")


def one_objective(estimators: Mapping[str, str], said: object) -> str:
    """Return our name of an estimator in a program's words: of several with one word, the plainest."""
    return next((ours for ours, theirs in estimators.items() if theirs == said), "")


def updates_of(facts: Run) -> list[Stated]:
    """Return how many updates a step has, and that no reference is read where its weight is zero."""
    prompts, answers, rows = (facts.whole(name) for name in ("prompts", "answers", "update_rows"))
    more = (
        [facts.meaning("updates", max(1, round(prompts * answers / rows)), "update_rows")] if prompts and answers and rows else []
    )
    return [*more, *([facts.meaning("reads_reference", False, "kl")] if facts.value("kl") == 0 else [])]


def question_of(program: str, facts: Run, on: str, model: str, extra: Mapping[str, str]) -> TrainAsk:
    """Return the question that a file asks on a cluster, or raise UserError where it states too little; `extra`: fields of no file."""
    values: dict[str, Any] = {one.fact: one.value for one in facts if one.value is not None}
    if model:
        values["policy"] = model
    missing = [words for name, words in NEEDED.items() if not values.get(name)]
    if missing:
        raise UserError(f"the file does not state {' nor '.join(missing)}; expected them in it, or --model for the model")
    on = on or _machine(values)
    prompt = int(values.get("prompt") or PROMPT_TOKENS)
    axes = [f"{axis}={int(values[axis])}" for axis in ("tp", "pp", "cp", "ep") if int(values.get(axis) or 0) > 1]
    stage = values.get("zero", {"fsdp": 3, "megatron": 1}.get(str(values.get("strategy"))))
    axes += [f"zero={int(stage)}"] if stage is not None else []
    axes += [f"recompute={'full' if values['recomputes'] else 'none'}"] if "recomputes" in values else []
    mode = str(values.get("mode") or "colocated")
    return TrainAsk(
        str(values["policy"]), on=on, framework=program, objective=str(values.get("objective") or "grpo"), batch=int(values["prompts"]),
        seq=prompt + int(values["response"]), prompt=prompt, answers=int(values["answers"]), mode=mode,
        engine_tp=int(values.get("engine_tp") or 0), eager=bool(values.get("eager")),
        engine_memory=float(values.get("engine_share") or 0), updates=int(values.get("updates") or 1), fix=tuple(axes),
        rows="" if values.get("packed") in (None, True) else "longest" if program == "verl" else "padded",
        rollout_devices=int(values.get("rollout_devices") or 0) if mode != "colocated" else 0,
        finetune=f"lora:{int(values['rank'])}" if values.get("rank") else "", partial=bool(values.get("partial")) and mode == "colocated",
        reference=values.get("reads_reference") is not False,
        critic=str(values.get("critic_model") or "") if values.get("objective") == "ppo" else "",
        reward=str(values.get("reward_model") or "function") if values.get("objective") != "gkd" else "",
        teacher=str(values.get("teacher_model") or "") if values.get("objective") == "gkd" else "",
        answer=extra.get("answer", ""), lengths=extra.get("lengths", ""),
    )  # fmt: skip


def _machine(values: Mapping[str, Any]) -> str:
    chip = values.get("chip")
    if not chip:
        raise UserError("missing --on: the devices that it will run on, such as 2x8xh100-sxm; the file names none")
    nodes, inside = int(values.get("nodes") or 1), int(values.get("devices_per_node") or 8)
    return f"{nodes}x{inside}x{chip}" if nodes > 1 else f"{inside}x{chip}"
