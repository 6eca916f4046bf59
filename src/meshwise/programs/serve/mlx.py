"""MLX: `mlx_lm.server` on Apple chips (its command line, version 0.32), over several machines under `mlx.launch`."""

import shlex
from collections.abc import Iterable

from meshwise.cost.serve.layouts import ServeLayout
from meshwise.cost.serve.question import ServeQuestion
from meshwise.models import find
from meshwise.programs import forms
from meshwise.programs.program import Refusal, Setup, Written
from meshwise.programs.serve import setup
from meshwise.programs.serve.declared import serving
from meshwise.programs.table import table
from meshwise.runs.run import Run, Stated, Value

TITLE, VERSION = "MLX", "0.32"
COMMANDS = ("mlx_lm.server",)
BITS = {"mlx-8bit": 8, "mlx-4bit": 4}  # formats that `mlx_lm.convert` makes
CACHE_BITS = {"int8": 8, "int4": 4}
MIN_RING_MACHINES = 2  # machines from which a ring starts

KEYS = table("mlx")


def wording(given: Setup) -> dict[str, Value]:
    """Return the facts of a layout in MLX's words. A quantised cache starts with the first token, not with the 5,000th."""
    words = dict(given.values) | {"model": _folder(given)}
    bits = CACHE_BITS.get(given.text("kv"))
    words |= {"kv_bits": bits, "kv_start": 0} if bits else {}
    words |= {"adapter_file": "path/to/adapter"} if "adapters" in words else {}
    return words | ({"draft_model": f"path/to/draft-of-{given.model.rpartition('/')[2]}"} if "draft" in given.values else {})


def meaning(facts: Run) -> Run:
    """Return the facts that MLX's words mean."""
    bits, users = facts.value("kv_bits"), facts.value("copy_users")
    more: list[Stated] = [facts.meaning("kv", f"int{bits}", "kv_bits")] if bits is not None else []
    if isinstance(users, int):
        more += [facts.derived(name, users, "of its only replica", "copy_users") for name in ("users", "copy_limit")]
    return facts.adding(more)


def _folder(given: Setup) -> str:
    """Return the hub id of published weights, or the folder that `mlx_lm.convert` writes."""
    return given.model.removeprefix("path/to/")


def lines(q: ServeQuestion, layout: ServeLayout) -> list[str]:
    """Return the conversion of the weights, where the format needs one, and the server."""
    given = setup.of_layout(q, layout)
    words = command(given, layout)
    bits = BITS.get(q.weights.format)
    if not bits:
        return [shlex.join(words)]
    source = ["mlx_lm.convert", "--hf-path", q.model.hub_id or find.hub_id(q.model.name), "--mlx-path", _folder(given)]
    return [shlex.join([*source, "-q", "--q-bits", str(bits)]), shlex.join(words)]


def command(given: Setup, layout: ServeLayout) -> list[str]:
    """Return the words that start the server, on all machines of a layout."""
    words = ["mlx_lm.server", *forms.flag_words(PROGRAM.settings(wording(given)))]
    number = len(layout.cards)
    if number < MIN_RING_MACHINES:
        return words
    return ["mlx.launch", "--backend", "ring", "--hosts", ",".join(f"host{i + 1}" for i in range(number)), "--", *words]


def write(given: Setup) -> Written:
    """Return the command of the server."""
    return Written({}, tuple(command(given, given.plan.layout)), starter="once")


def refuse(given: Setup) -> Iterable[Refusal]:
    """Return what one MLX server cannot do with a plan."""
    kind = given.plan.q.cards[0].chip.kind
    if kind != "apple":
        yield Refusal(f"{TITLE} runs on Apple chips, and the plan is for {given.text('chip')}: plan again with --engine mlx", {})
    if given.whole("adapters", 0) > 1:
        yield Refusal(f"one {TITLE} server has one adapter, and the plan {given.whole('adapters')}: plan with --lora 1:RANK", {})


PROGRAM = serving(
    "mlx", TITLE, VERSION, engine="mlx", keys=KEYS, write=write, commands=COMMANDS, refuse=refuse, wording=wording,
    meaning=meaning,
)  # fmt: skip
