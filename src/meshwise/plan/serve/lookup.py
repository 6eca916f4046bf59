"""Look up everything that a serving question names: the devices, the model, the engine, the weights in their format, and the fixed axes."""

import json
import math
from dataclasses import replace
from pathlib import Path

from meshwise import units
from meshwise.catalogue import clusters
from meshwise.catalogue.chips import Cluster, Host, Node
from meshwise.catalogue.engines import Engine, find_engine, runtime_of
from meshwise.catalogue.files import text_of
from meshwise.cost.serve.load.requests import Lengths, Load, Target, Targets
from meshwise.cost.serve.memory.cache import cache_type
from meshwise.cost.serve.memory.placement import refuses_tp
from meshwise.cost.serve.question import ServeQuestion
from meshwise.cost.work import Serve
from meshwise.errors import UserError, nearest, quoted
from meshwise.models import find
from meshwise.models.formats import FORMATS, SAME_IN_GGUF, Format, Weights, as_gguf, split_model_name, weights
from meshwise.models.model import Model
from meshwise.models.tensors import stored_by_llamacpp
from meshwise.plan.ask import ServeAsk

MAX_CARDS = 4096
MAX_DRAFT_TOKENS = 16
STRICTNESS = {"mean": 0, "p50": 0, "p95": 1, "p99": 2}  # quantiles of targets by how much they demand
DEFAULT_CONTEXT_TOKENS = 8192  # tokens of one request where no context is given, if the model was trained for as many
UNITS_OF_FORMAT = {"fp8": "fp8", "nvfp4": "fp4"}
"""Formats whose products need units of their own, and the rate that a chip with these units states."""
KINDS = {"gpu": "GPUs", "apple": "Apple chips", "cpu": "CPUs", "tpu": "TPUs", "npu": "NPUs"}
LENGTH_KEYS = (("prompt", "prompt_len", "input", "input_len"), ("output", "output_len", "gen_len"))
WEIGHTS_SHARE = 0.8  # share of all devices' memory that weights may take so that a cache fits beside them. A choice.
SERVE_AXES = ("split", "cards", "tp", "pp", "ep", "replicas", "hosts", "prefill")

Bounds = dict[str, int | str]


def question(ask: ServeAsk, model: Model | None = None) -> ServeQuestion:
    """Return everything that the memory and speed of a layout depend on. `model`: the model, if it was looked up already."""
    if not ask.model:
        raise UserError("missing MODEL: a preset, HF id, config.json or .gguf, with a format as in llama-3.3-70b:q4_k_m")
    if not ask.on:
        raise UserError("missing --on: the devices, such as 4xrtx4060ti-16gb or 2x(2xrtx3090)@10Gbps")
    name, fmt = split_model_name(ask.model)
    cluster = with_processors_as_hosts(servable(_adjusted(ask)))
    model = model or find.find_model(name)
    engine = engine_of(ask.engine, fmt, bool(model.tensors), cluster)
    if not ask.engine and engine.gguf and not stored_by_llamacpp(model.model_type):
        engine = find_engine("vllm")
    runtime = runtime_of(engine, model.model_type)
    load = load_of(ask)
    needed = _longest(load)
    adapters, _, rank = ask.lora.partition(":")
    context = ask.context or max(needed, min(DEFAULT_CONTEXT_TOKENS, model.decoder.context or DEFAULT_CONTEXT_TOKENS))
    work = Serve(
        prompt=round(load.prompt.mean), output=round(load.output.mean), users=max(1, load.users), context=context,
        kv=cache_type(ask.kv, runtime), depth=load.depth, adapters=int(adapters or 0), rank=int(rank or 0),
    )  # fmt: skip
    q = ServeQuestion(
        model=model, weights=weights_of(model, fmt, engine, cluster), cluster=cluster, engine=engine, runtime=runtime, work=work,
        load=load, targets=targets_of(ask), bounds=fixed(",".join(ask.fix)),
    )  # fmt: skip
    check_load(q.load, q.targets)
    check(q)
    return q


def check_load(load: Load, targets: Targets) -> None:
    """Raise UserError for a load or targets that make no sense together."""
    if load.users and load.rate:
        raise UserError("--users and --rate exclude each other: users wait for their answers, a rate does not")
    if load.draft > MAX_DRAFT_TOKENS:
        raise UserError(f"--draft {load.draft}: expected at most {MAX_DRAFT_TOKENS} tokens; later ones are hardly ever accepted")
    if load.draft and not 0 < load.accept < 1:
        raise UserError("--draft needs --accept: the share of proposed tokens that are accepted, such as 0.7")
    if load.accept and not load.draft:
        raise UserError("--accept needs --draft: the number of tokens that are proposed per step, such as 3")
    if load.draft >= load.output.mean:
        raise UserError(f"--draft {load.draft}: an output has {load.output.mean:g} tokens; expected a shorter draft")
    if load.prefix >= 1:
        raise UserError("--prefix 100%: expected less; an engine always computes the last token of a prompt")
    if load.burst != 1 and not load.rate:
        raise UserError(f"--burst {load.burst:g} needs --rate: users who wait for their answer do not come in bursts")
    _check_targets(targets)


def _check_targets(targets: Targets) -> None:
    """Raise UserError for a target that another one contradicts: no answer ends before its first token."""
    whole, first = targets.e2e, targets.ttft
    if whole and first and whole.seconds < first.seconds and STRICTNESS[whole.quantile] >= STRICTNESS[first.quantile]:
        raise UserError(
            f"--e2e {whole.seconds:g}s at {whole.quantile} contradicts --ttft {first.seconds:g}s at {first.quantile}: an answer ends after "
            "its first token; raise --e2e or lower --ttft"
        )


def load_of(ask: ServeAsk) -> Load:
    """Return the load of a question: one user where neither users nor a rate are given."""
    prompt, output = Lengths(ask.prompt, ask.prompt_spread), Lengths(ask.output, ask.output_spread)
    if ask.lengths:
        prompt, output = read_lengths(Path(ask.lengths))
    return Load(
        prompt=prompt, output=output, users=0 if ask.rate and ask.users == 1 else ask.users, rate=ask.rate, burst=ask.burst,
        depth=ask.depth, prefix=ask.prefix, draft=ask.draft, accept=ask.accept,
    )  # fmt: skip


def read_lengths(path: Path) -> tuple[Lengths, Lengths]:
    """Read prompt and output lengths of requests from a JSONL file."""
    prompts: list[int] = []
    outputs: list[int] = []
    for number, line in enumerate(text_of(path).splitlines(), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            prompt, output = (next(int(row[key]) for key in keys if key in row) for keys in LENGTH_KEYS)
        except (ValueError, TypeError, KeyError, StopIteration):
            raise UserError(f"{path.name}, line {number}: expected whole numbers 'prompt' and 'output'") from None
        if prompt < 0 or output < 1:
            raise UserError(f"{path.name}, line {number}: {prompt} prompt and {output} output tokens; expected at least 0 and 1")
        prompts.append(prompt)
        outputs.append(output)
    if not prompts:
        raise UserError(f'{path.name} has no requests; expected a line such as {{"prompt": 512, "output": 128}} for each')
    return Lengths.of(prompts), Lengths.of(outputs)


def _longest(load: Load) -> int:
    """Return the tokens that the longest request needs: with a spread, all but one in a thousand."""

    def most(lengths: Lengths) -> float:
        return max(lengths.samples) if lengths.samples else lengths.mean * (1 + 3 * lengths.spread)

    return load.depth + math.ceil(most(load.prompt) + most(load.output))


def target_of(text: str) -> Target | None:
    """Return the target of '1s@p95'; None of ''."""
    seconds, _, quantile = text.partition("@")
    return Target(units.parse(seconds, "seconds"), quantile) if text else None


def targets_of(ask: ServeAsk) -> Targets:
    """Return the latency targets; tokens/s of each request are a time per token."""
    if ask.per_user and ask.tpot:
        raise UserError("--per-user and --tpot say the same in two ways; give one of them")
    tpot = Target(1 / ask.per_user, "mean") if ask.per_user else target_of(ask.tpot)
    return Targets(ttft=target_of(ask.ttft), tpot=tpot, e2e=target_of(ask.e2e))


def with_processors_as_hosts(cluster: Cluster) -> Cluster:
    """Return the cluster with processors beside accelerators as the CPU and memory of their host: '4xrtx3090+epyc-9654:512GB'. They compute
    the layers that stay in host memory, and are no devices that layers are spread over."""
    nodes: list[tuple[int, Node]] = []
    for count, node in cluster.nodes:
        processors = [(number, chip) for number, chip in node.chips if chip.kind == "cpu"]
        others = tuple((number, chip) for number, chip in node.chips if chip.kind != "cpu")
        if processors and others:
            number, chip = processors[0]
            host = Host(memory=sum(times * one.memory for times, one in processors), cpus=f"{number} x {chip.name}")
            node = replace(node, chips=others, host=host)
        nodes.append((count, node))
    return replace(cluster, nodes=tuple(nodes))


def servable(cluster: Cluster) -> Cluster:
    """Return the cluster. UserError for one that is too large."""
    if cluster.devices > MAX_CARDS:
        raise UserError(f"{cluster.name} has {cluster.devices:,} devices; serving is planned on at most {MAX_CARDS:,}")
    return cluster


def engine_of(name: str, fmt: Format | None, stored: bool, cluster: Cluster) -> Engine:
    """Return the named engine; else one that runs the format; else vLLM on GPUs that stand in servers, TPUs and NPUs; else llama.cpp."""
    if name:
        return find_engine(name)
    if stored or (fmt and fmt.gguf):
        return find_engine("llama.cpp")
    datacenter = all(
        chip.kind in ("tpu", "npu") or (chip.kind == "gpu" and chip.in_servers)
        for _, node in cluster.nodes
        for _, chip in node.chips
    )
    return find_engine("vllm" if datacenter or (fmt and fmt.engines == ("vllm",)) else "llama.cpp")


def _adjusted(ask: ServeAsk) -> Cluster:
    """Return the devices with the user's own link, price and host memory. UserError for host memory where devices compute in it."""
    cluster = clusters.adjusted(
        clusters.find_cluster(ask.on), link=ask.link, price=ask.price, memory=ask.ram, seller=ask.provider
    )
    if ask.ram and any(chip.shares_memory for _, node in cluster.nodes for _, chip in node.chips):
        raise UserError("--ram: these devices compute in the memory of their host; name it with them, as in m3-ultra:256GB")
    return cluster


def weights_of(model: Model, fmt: Format | None, engine: Engine, cluster: Cluster) -> Weights:
    """Return the weights in the requested format, else in the one that the checkpoint is published in, else in the engine's default, or
    where that is too large for all devices together in the widest narrower one that people use there.
    UserError where the engine does not run the requested format."""
    if model.tensors:
        if not engine.gguf:
            raise UserError(
                f"{engine.name} does not read GGUF files; llama.cpp and ollama do, or name the model for {engine.name}: "
                f"{model.name}:{engine.common_formats[-1]}"
            )
        return weights(model, fmt)
    chosen = fmt or _published(model, engine) or _usual(model, engine, cluster)
    if engine.formats and chosen.name not in engine.formats:
        raise UserError(f"{engine.name} is planned in {', '.join(engine.formats)}, not in {chosen.name}")
    if engine.gguf:
        return weights(model, as_gguf(chosen))
    if chosen.gguf:
        raise UserError(f"{engine.name} does not run {chosen.name}; {_vllm_format(chosen)} is the nearest format that it runs")
    return weights(model, chosen)


def _usual(model: Model, engine: Engine, cluster: Cluster) -> Format:
    """Return the engine's default format; of a server whose devices cannot hold that, fp8 where they multiply in it, or awq."""
    default = FORMATS[engine.default_format]
    if engine.gguf:
        return default
    chips = [(number * count, chip) for number, node in cluster.nodes for count, chip in node.chips]
    room = WEIGHTS_SHARE * sum(number * chip.memory for number, chip in chips)
    native = all("fp8" in chip.flops for _, chip in chips)
    narrower = [FORMATS[name] for name in ("fp8", "awq") if name != "fp8" or native]
    runs = [one for one in (default, *narrower) if not engine.formats or one.name in engine.formats]
    return next((one for one in runs if weights(model, one).bytes <= room), default)


def _published(model: Model, engine: Engine) -> Format | None:
    """Return the format of a published quantised checkpoint (DeepSeek-V3: fp8, gpt-oss: mxfp4), if the engine runs it as it is."""
    fmt = FORMATS.get(model.quantization)
    if fmt is None or (engine.gguf and fmt.name not in SAME_IN_GGUF):
        return None
    return fmt if not engine.formats or fmt.name in engine.formats else None


def _vllm_format(fmt: Format) -> str:
    """Return the format of vLLM that is about as wide as a GGUF type."""
    digits = next((letter for letter in fmt.name if letter.isdecimal()), "4")
    return "bf16" if fmt.name in ("F32", "F16", "BF16") else "fp8" if int(digits) > 5 else "awq"


def fixed(text: str) -> Bounds:
    """Parse 'split=row,cards=3': the values that a layout must have."""
    bounds: Bounds = {}
    for piece in filter(None, (word.strip() for word in text.split(","))):
        axis, equals, value = (word.strip() for word in piece.partition("="))
        if axis not in SERVE_AXES or not equals:
            raise UserError(f"--fix {quoted(piece)}: expected {', '.join(SERVE_AXES)} and a value{nearest(axis, SERVE_AXES)}")
        if axis != "split" and not (value.isdecimal() and int(value[:6]) > 0 and len(value) < 6):
            raise UserError(f"--fix {quoted(piece)}: {axis} is a whole number, 1 or more")
        bounds[axis] = value if axis == "split" else int(value)
    return bounds


def check(q: ServeQuestion) -> None:
    """Raise UserError for fixed values that the engine does not support on these devices."""
    split, tp = q.bounds.get("split"), q.bounds.get("tp", q.bounds.get("pp", 1))
    if split is not None and split not in q.engine.splits:
        raise UserError(f"{q.engine.name} cannot do a {split} split; it can do {', '.join(q.engine.splits)}")
    if int(q.bounds.get("ep", 1)) > 1 and not (q.engine.attention_dp and q.experts):
        lacks = f"{q.model.name} has no routed experts" if q.engine.attention_dp else f"{q.engine.name} has no attention dp"
        raise UserError(f"--fix ep={q.bounds['ep']}: {lacks}")
    if tp != 1 and "tensor" not in q.engine.splits:
        raise UserError(f"{q.engine.name} has no tensor or pipeline parallelism; it can split by {', '.join(q.engine.splits)}")
    refusal = refuses_tp(q.model, int(q.bounds["tp"])) if "tp" in q.bounds else ""
    if refusal:
        raise UserError(f"{q.engine.name} on {q.model.name}: {refusal}")
    needed = math.prod(int(q.bounds.get(axis, 1)) for axis in ("tp", "pp", "replicas"))
    copy = max(int(q.bounds.get(axis, 1)) for axis in ("cards", "ep"))
    needed = max(needed, copy * int(q.bounds.get("replicas", 1)))
    if needed > q.cluster.devices:
        raise UserError(f"--fix needs {needed} cards, but {q.cluster.name} has {q.cluster.devices}")
    if int(q.bounds.get("replicas", 1)) > 1 and not q.engine.copies:
        raise UserError(f"{q.engine.name} cannot run several replicas of a model; llama.cpp and vllm can")
    if not q.load.rate and int(q.bounds.get("replicas", 1)) > q.work.users:
        raise UserError(
            f"{q.bounds['replicas']} replicas need as many concurrent requests; give --users {q.bounds['replicas']} or more"
        )
    _check_options(q)
    _check_chips(q)


def _check_options(q: ServeQuestion) -> None:
    """Raise UserError for parts of the load that the engine has no feature for."""
    name = q.engine.name
    if q.load.draft and not q.engine.drafts:
        raise UserError(f"{name} has no speculative decoding; leave out --draft, or use --engine vllm or llama.cpp")
    if q.load.prefix and not q.runtime.prefixes:
        raise UserError(f"{name} finds no prefixes in its cache; leave out --prefix, or use --engine vllm or llama.cpp")
    if q.work.adapters and not q.engine.adapters:
        raise UserError(f"{name} serves no LoRA adapters beside a model; leave out --lora, or use --engine vllm or llama.cpp")
    if "prefill" in q.bounds and not q.engine.disaggregates:
        raise UserError(f"{name} cannot compute prompts on other devices than outputs; use --engine vllm, sglang or tensorrt-llm")


def _check_chips(q: ServeQuestion) -> None:
    """Raise UserError for chips that the engine does not run on, or that cannot compute in the format."""
    vendors = {card.chip.vendor for card in q.cards}
    if q.engine.vendors and not vendors <= set(q.engine.vendors):
        raise UserError(
            f"{q.engine.name} runs on chips of {', '.join(q.engine.vendors)} only; --engine vllm or llama.cpp run there"
        )
    needed = UNITS_OF_FORMAT.get(q.weights.format)
    without = {card.chip.name for card in q.cards if needed and needed not in card.chip.flops}
    if without and q.weights.format in q.engine.native_formats:
        raise UserError(
            f"{q.engine.name} does not run {q.weights.format} on {', '.join(sorted(without))}, which has no {needed} products; "
            "use bf16, int8 or awq"
        )
    wrong_kind = {card.chip.name for card in q.cards if card.chip.kind not in q.engine.kinds}
    if wrong_kind:
        *most, last = (KINDS[kind] for kind in q.engine.kinds)
        kinds = f"{', '.join(most)} and {last}" if most else last
        other = "vllm with bf16 weights" if q.engine.gguf else "llama.cpp"
        raise UserError(f"{q.engine.name} runs on {kinds}, not on {', '.join(sorted(wrong_kind))}; --engine {other} runs there")
