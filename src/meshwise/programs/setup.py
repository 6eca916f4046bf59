"""The facts of a plan: what its writers say in the words of a program."""

from collections.abc import Mapping
from typing import Any, cast

from meshwise.catalogue.frameworks import Framework
from meshwise.errors import UserError
from meshwise.models import find
from meshwise.models.model import Model
from meshwise.plan.train.choice import Choice
from meshwise.plan.train.plan import TrainPlan
from meshwise.programs.program import Setup
from meshwise.programs.train import adapters, recipe
from meshwise.runs.run import Value
from meshwise.units import GIB, figure
from meshwise.version import VERSION

POSITIONS = {"rotary": "rope", "learned": "learned", "alibi": "alibi", "none": "none"}


def of_plan(plan: TrainPlan, number: int = 1) -> Setup:
    """Return the facts of one layout of a training plan: the best, or the one in row `number` of its table."""
    if not 1 <= number <= len(plan.choices):
        raise UserError(f"--row {number}: the plan has {len(plan.choices)} layouts")
    choice, q = plan.choices[number - 1], plan.question()
    per_node = q.chip.per_node if q.cluster.torus else q.cluster.node.devices
    per_node = min(per_node, choice.devices)
    values: dict[str, Value] = dict(choice.layout)
    values |= {
        "dp": int(choice.layout["dp_replicate"]) * int(choice.layout["dp_shard"]), "batch": plan.ask.batch,
        "seq": plan.ask.seq, "accumulation": choice.gradient_accumulation, "precision": plan.ask.precision or "bf16",
        "optimizer": plan.ask.optimizer or "adamw", "compile": plan.ask.compile, "nodes": -(-choice.devices // per_node),
        "devices_per_node": per_node, "devices": choice.devices, "chip": q.chip.key,
    }  # fmt: skip
    values |= {name: stated for name in recipe.FACTS if (stated := getattr(plan.ask, name))}
    values["hides"] = recipe.hides(q.work.framework)
    values |= {"objective": plan.ask.objective} if plan.ask.objective != "sft" else {}
    values |= {"mbs": int(choice.layout["mbs"]) // q.work.objective.sequences} if not q.work.objective.generates else {}
    values |= {"in_backward": True} if plan.ask.in_backward else {}
    values |= {"sharded_by": sharded_by} if (sharded_by := sharding_of(q.work.framework)) else {}
    values |= adapters.facts_of(q.model, q.work.finetune)
    values["save_every"] = save_every(choice)
    if plan.ask.tokens:
        steps = -(-int(plan.ask.tokens) // (plan.ask.batch * plan.ask.seq))
        values |= {"tokens": plan.ask.tokens, "steps": steps, "samples": steps * plan.ask.batch}
    values |= model_facts(q.model)
    config, _, _ = find.find_values(plan.ask.model)
    values |= _numbers(config)
    return Setup(values, config, find.hub_id(plan.ask.model), header(plan, choice), plan)


MAX_SAVE_SECONDS = 4 * 3600.0
"""Work between two checkpoints at most, whatever the failures: a job in a queue also ends at its time limit."""


def save_every(choice: Choice) -> int:
    """Return the steps between checkpoints: the plan's best interval for its failures."""
    seconds = min(float(choice.goodput.get("interval", MAX_SAVE_SECONDS)), MAX_SAVE_SECONDS)
    return max(1, round(seconds / choice.step)) if choice.step > 0 else 1000


def sharding_of(framework: Framework) -> str:
    """Return through what a program that has several ways shards in a plan: deepspeed, or fsdp; '' for programs with one way."""
    return "fsdp" if framework.through else "deepspeed" if "+deepspeed" in framework.program else ""


def model_facts(model: Model) -> dict[str, Value]:
    """Return the sizes of a model as facts."""
    d = model.decoder
    facts: dict[str, Value] = {
        "layers": d.layers, "hidden": d.hidden, "ffn": d.ffn, "heads": d.heads, "kv_heads": d.kv_heads,
        "head_dim": d.head_dim, "vocab": d.vocab, "gated": d.gated, "tied": d.tied,
        "position_kind": POSITIONS[d.position_kind], "norm": "layernorm" if d.norm_bias else "rmsnorm",
        "biased": d.ffn_bias or d.out_bias, "qkv_bias": d.qkv_bias,
    }  # fmt: skip
    facts |= {"qk_norm": d.qk_norm} if d.qk_norm else {}
    facts |= {"positions": d.positions} if d.positions else {}
    ops = {op.name: op for op in model.ops}
    if "experts.up" in ops:
        number = ops["experts.up"].count // model.times["moe"]
        facts |= {"experts": number, "top_k": round(ops["experts.up"].m * number), "expert_ffn": ops["experts.up"].n}
        facts |= {"shared_ffn": ops["shared.up"].n} if "shared.up" in ops else {}
        facts |= {"dense_layers": model.times["ffw"]} if model.times.get("ffw") else {}
    return facts | _latent(model)


def _latent(model: Model) -> dict[str, Value]:
    """Return the ranks and widths of latent attention; nothing for another kind."""
    ops = {op.name: op for op in model.ops}
    if "attention.kv_down" not in ops or "attention.kv_norm" not in ops:
        return {}
    rank = ops["attention.kv_norm"].n
    rope, scores = ops["attention.kv_down"].n - rank, ops["attention.scores"]
    facts: dict[str, Value] = {"kv_rank": rank, "rope_dim": rope, "nope_dim": scores.k - rope, "v_dim": scores.n}
    return facts | ({"q_rank": ops["attention.q_norm"].n} if "attention.q_down" in ops else {})


def _numbers(config: Mapping[str, object]) -> dict[str, Value]:
    """Return the base of rotary positions and the epsilon of norms, where the config states them."""
    rope = config.get("rope_parameters")
    theta = config.get("rope_theta") or (cast(dict[str, object], rope).get("rope_theta") if isinstance(rope, dict) else None)
    eps = next((config[key] for key in ("rms_norm_eps", "layer_norm_epsilon", "layer_norm_eps") if key in config), None)
    stated = {"rope_theta": theta, "norm_eps": eps}
    numbers: dict[str, Value] = {name: float(value) for name, value in stated.items() if isinstance(value, int | float)}
    counts = {"expert_groups": "n_group", "group_top_k": "topk_group", "mtp_layers": "num_nextn_predict_layers"}
    return numbers | {name: count for name, key in counts.items() if isinstance(count := config.get(key), int) and count}


def header(plan: TrainPlan, choice: Choice) -> tuple[str, ...]:
    """Return what a file says about its plan: the command, the layout and the prediction."""
    c: Any = plan.cluster
    low, high = choice.peak_low / GIB, choice.peak_high / GIB
    return (
        f"Made by meshwise {VERSION} from: {plan.command}",
        f"Layout: {choice.name} on {choice.devices:,} x {c['chip']}",
        f"Predicted with {plan.framework}: {figure(choice.step, 4)} s/step ({figure(choice.low)} to {figure(choice.high)}), "
        f"MFU {choice.mfu:.1%}, {choice.peak / GIB:.1f} GiB of {choice.capacity / GIB:.0f} per device ({low:.0f} to {high:.0f})",
    )
