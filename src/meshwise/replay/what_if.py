"""Other deployments, one change at a time, with the effect of each on latency and money."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

from meshwise.errors import UserError
from meshwise.plan.ask import ServeAsk
from meshwise.plan.axes import SERVE_AXES
from meshwise.plan.vary import parse, variants
from meshwise.replay import deployment as deployments
from meshwise.replay.answer import Setting
from meshwise.replay.ask import copies_of
from meshwise.replay.compared import Compared, Variant, compared, variant
from meshwise.replay.engine.router import ROUTERS

HOST_CACHE = "100GB"  # host memory of a copy that is tried for prefixes


def answer(at: Setting, vary: Sequence[str] = ()) -> Compared:
    """Replay a trace through a deployment and through each change of it; `vary` adds axes of `serve`: chip=h200,b200."""
    tried = [variant(at, "as it is")]
    for name, changed in (*_fleets(at), *_layouts(at), *_varied(at, vary)):
        tried.append(_tried(name, changed))
    return compared(at, "what if", tried, flags=("--what-if", *(word for text in vary for word in ("--vary", text))))


def _tried(name: str, changed: Setting | str) -> Variant:
    if isinstance(changed, str):
        return Variant(name=name, figures=None, refusal=changed)
    try:
        return variant(changed, name)
    except UserError as error:
        return Variant(name=name, figures=None, refusal=str(error))


def _fleets(at: Setting) -> Iterator[tuple[str, Setting]]:
    """Yield the same layout in other numbers, behind other routers, with other caches and chunks."""
    ask, layout = at.ask, at.deployment.option.layout
    copies = copies_of(ask.copies)[0] or layout.replicas
    if not ask.autoscale:
        others = {copies - 1: "one copy fewer", 2 * copies: "twice the copies", copies + 1: "one copy more"}
        for number, words in others.items():
            if number >= 1:
                yield words, replace(at, ask=replace(ask, copies=str(number)))
    if copies > 1 or ask.autoscale:
        yield from ((f"router {name}", replace(at, ask=replace(ask, router=name))) for name in ROUTERS if name != ask.router)
    if at.facts.block and at.deployment.question.runtime.prefixes:
        on = not ask.prefix_cache
        yield f"prefix cache {'on' if on else 'off'}", replace(at, ask=replace(ask, prefix_cache=on))
        if not ask.host_cache and ask.prefix_cache:
            yield f"{HOST_CACHE} of host memory for prefixes", replace(at, ask=replace(ask, host_cache=HOST_CACHE))
    tokens = ask.chunk or at.deployment.option.limits.tokens
    for number in (tokens // 4, tokens * 2):
        if number >= 64:
            yield f"{number:,} tokens a pass", replace(at, ask=replace(ask, chunk=number))


def _layouts(at: Setting) -> Iterator[tuple[str, Setting | str]]:
    """Yield other formats of weights and cache, and pools for prompts and outputs, on the same devices."""
    q, asked = at.deployment.question, at.deployment.ask
    changes = [("quant", name) for name in ("fp8",) if not q.engine.gguf and q.weights.format not in ("fp8", "nvfp4", "mxfp4")]
    changes += [("kv", "fp8")] if "fp8" in q.runtime.cache_types and q.work.kv != "fp8" else []
    for axis, value in changes:
        words = f"{value} {'weights' if axis == 'quant' else 'KV cache'}"
        yield words, _redeployed(at, SERVE_AXES[axis].change(asked, value))
    if q.engine.disaggregates and len(q.cards) > 1 and at.deployment.option.pool is None and not at.ask.autoscale:
        yield "pools for prompts and outputs", _redeployed(at, replace(asked, fix=(*asked.fix, "prefill=1")))


def _varied(at: Setting, vary: Sequence[str]) -> Iterator[tuple[str, Setting | str]]:
    """Yield the points of `--vary`, each axis by itself."""
    for text in vary:
        for point in variants(at.deployment.ask, parse([text], SERVE_AXES, at.deployment.ask), SERVE_AXES):
            name = f"{text.partition('=')[0]} {point.labels[0]}"
            yield name, _redeployed(at, point.ask) if point.ask else point.refusal


def _redeployed(at: Setting, asked: ServeAsk) -> Setting | str:
    """Return the setting with another question's best layout, or why there is none."""
    try:
        return replace(at, deployment=deployments.deployed(asked))
    except UserError as error:
        return str(error)
