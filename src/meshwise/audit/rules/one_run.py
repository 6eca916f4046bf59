"""What one run says against itself. Each rule is a function of its figures, and says nothing where a figure is not stated."""

import math
from collections.abc import Callable, Iterator

from meshwise.audit.figures import RECOMPUTED, Figures
from meshwise.audit.finding import Finding, Sure, near, number, percent
from meshwise.catalogue import calibrations
from meshwise.units import GIB

SMALLEST_VOCABULARY = 256
"""Bytes: no tokenizer has fewer words, so a fresh model's loss is at least ln 256 = 5.5."""
FIRST_STEPS = 2
"""So few updates leave the loss of a fresh model where it was."""
GEMM_MARGIN = 1.05
MULTIPLES = 0.02
"""How close a ratio is to a whole number, or to the number of devices, to be called that."""

Rule = Callable[[Figures], Iterator[Finding]]


def _found(f: Figures, rule: str, sure: Sure, words: str, arithmetic: str) -> Finding:
    return Finding(rule=rule, sure=sure, where=(f.where,), words=words, arithmetic=arithmetic)


def tokens_per_step(f: Figures) -> Iterator[Finding]:
    """Sequences x length against the tokens a step that the source states."""
    stated, counted = f.run.get("tokens_per_step"), f.batch * f.run.get("seq_len")
    if not math.isfinite(stated * counted) or near(stated, counted, f.within("tokens_per_step", "global_batch_seqs")):
        return
    each = " (that is one device's share)" if near(stated * f.devices, counted, MULTIPLES) else ""
    work = f"{number(f.batch)} sequences x {number(f.run.get('seq_len'))} = {number(counted)}"
    yield _found(
        f, "tokens per step", "sure", f"it states {number(stated)} tokens a step{each}, and its batch has {number(counted)}", work
    )


def step_times_rate(f: Figures) -> Iterator[Finding]:
    """Step time x throughput against the tokens of a step."""
    seconds, rate, tokens = f.run.get("seconds"), f.stated_rate, f.tokens
    moved = seconds * rate
    names = ("seconds", "tokens_per_second", "tokens_per_second_per_gpu", "samples_per_second", "global_batch_seqs")
    if not math.isfinite(moved * tokens) or tokens <= 0 or near(moved, tokens, f.within(*names)):
        return
    ratio = moved / tokens
    work = (
        f"{number(rate)} tok/s x {number(seconds)} s = {number(moved)} tokens, and a step has {number(tokens)}: {ratio:.3g} times"
    )
    stated = f.run.get("tokens_per_step")
    if math.isfinite(stated) and not near(stated, tokens, MULTIPLES):
        work += f" ({moved / stated:.3g} times the {number(stated)} it states)"
    if f.dp > 1 and "per_device_batch" not in f.run.numbers and abs(math.log(ratio / f.dp)) < abs(math.log(ratio)):
        work += f", and {ratio / f.dp:.3g} times if the batch is of each device"
    words = "step time and throughput do not belong together"
    for factor, reason in ((f.devices, "the rate is counted once per device"), (1 / f.devices, "the rate is one device's")):
        if math.isfinite(factor) and f.devices > 1 and near(ratio, factor, MULTIPLES):
            words += f": {reason}"
    if near(ratio, 1000, MULTIPLES) or near(ratio, 1e-3, MULTIPLES):
        words += ": one of them is in milliseconds"
    yield _found(f, "step x throughput", "sure", words, work)


def ranks_against_total(f: Figures) -> Iterator[Finding]:
    """The rates of single ranks against the total, and against what the step time leaves."""
    rates, total = f.run.ranks.get("tokens_per_second", ()), f.run.get("tokens_per_second")
    if len(rates) < 2:
        return
    whole, mean = sum(rates), sum(rates) / len(rates)
    if math.isfinite(total) and not near(whole, total, f.within("tokens_per_second")):
        same = near(mean, total, 0.15)
        words = "each rank prints the total" if same else "the ranks do not add up to the total"
        yield _found(
            f, "ranks and total", "sure", words, f"{len(rates)} ranks sum to {number(whole)} tok/s, the total is {number(total)}"
        )
    timed = f.tokens / f.run.get("seconds") if f.run.get("seconds") > 0 else math.nan
    if near(timed, mean, 0.15) and not near(timed, whole, 0.15):
        work = (
            f"{number(f.tokens)} tokens / {number(f.run.get('seconds'))} s = {number(timed)} tok/s in all, "
            f"close to the {number(mean)} of each rank; "
            f"the {number(whole)} are {whole / timed:.1f} times as much"
        )
        words = f"each rank's figure is already that of all ranks, so the total is about {len(rates)} times too high"
        yield _found(f, "ranks and total", "likely", words, work)


def samples_against_batch(f: Figures) -> Iterator[Finding]:
    """Samples a second x step time against the batch."""
    samples, seconds = f.run.get("samples_per_second"), f.run.get("seconds")
    if not math.isfinite(samples * seconds * f.batch) or math.isfinite(f.stated_rate * f.tokens):
        return  # with a length, `step_times_rate` says the same in tokens
    if not near(samples * seconds, f.batch, f.within("seconds", "samples_per_second", "global_batch_seqs")):
        work = f"{number(samples)} samples/s x {number(seconds)} s = {number(samples * seconds)}, the batch is {number(f.batch)}"
        yield _found(f, "step x throughput", "sure", "step time, samples a second and batch do not belong together", work)


def layout_and_devices(f: Figures) -> Iterator[Finding]:
    """Axes that do not multiply to the devices."""
    run = f.run
    if not run.stated("tp", "pp") or not (run.stated("n_gpus") or run.stated("nodes", "gpus_per_node")):
        return
    cut = run.get("tp") * run.get("pp") * run.numbers.get("cp", 1.0)
    if not run.stated("dp"):
        if f.devices % cut:
            yield _found(
                f, "layout", "sure", "its axes do not divide its devices", f"tp x pp = {number(cut)}, {number(f.devices)} devices"
            )
        return
    product = cut * run.get("dp")
    if product == f.devices:
        return
    fits = f.devices / cut
    instead = f"; dp {number(fits)} would" if fits == int(fits) else ""
    axes = " x ".join(number(run.get(axis)) for axis in ("dp", "tp", "pp", "cp") if run.stated(axis))
    yield _found(
        f,
        "layout",
        "sure",
        f"its layout does not multiply to its devices{instead}",
        f"{axes} = {number(product)}, not {number(f.devices)}",
    )


def batch_divides(f: Figures) -> Iterator[Finding]:
    """Replicas x micro-batch x accumulation against the batch."""
    run = f.run
    if not run.stated("dp") and not run.stated("tp", "pp"):
        return  # the replicas are not known
    if (
        not run.stated("global_batch_seqs", "micro_batch")
        or not math.isfinite(f.dp)
        or f.dp != int(f.dp)
        or "global_batch_seqs" in run.rough
    ):
        return
    slots = f.dp * run.get("micro_batch")
    batch, steps = run.get("global_batch_seqs"), run.get("grad_accum")
    if math.isfinite(steps) and slots * steps != batch:
        work = f"dp {number(f.dp)} x mbs {number(run.get('micro_batch'))} x {number(steps)} = {number(slots * steps)}, not {number(batch)}"
        yield _found(f, "batch", "sure", "replicas, micro-batch and accumulation do not make its batch", work)
    elif slots and batch % slots:
        work = f"{number(batch)} / (dp {number(f.dp)} x mbs {number(run.get('micro_batch'))}) = {batch / slots:.3f}"
        yield _found(f, "batch", "likely", "its batch does not divide by its replicas and micro-batch", work)


def layers_divide(f: Figures) -> Iterator[Finding]:
    """A run that ran has a layer for every stage, and its heads divide by its tensor-parallel ranks."""
    layers, stages, heads, tp = (f.run.get(name) for name in ("n_layers", "pp", "n_heads", "tp"))
    if failed(f):
        return
    if 0 < layers < stages:
        yield _found(f, "layers", "sure", "it has more stages than layers", f"{number(layers)} layers over pp {number(stages)}")
    if tp > 1 and heads > 0 and heads % tp:
        yield _found(
            f, "layers", "likely", "its heads do not divide by tp", f"{number(heads)} heads / tp {number(tp)} = {heads / tp:.2f}"
        )


def failed(f: Figures) -> bool:
    return f.run.text("outcome").lower() in ("fail", "oom")


def why_it_failed(f: Figures) -> str:
    """What a failed run could not have run with: no fault of the source, and worth knowing."""
    layers, stages = f.run.get("n_layers"), f.run.get("pp")
    if f.run.text("outcome").lower() != "fail" or not stages > 1 or not layers > 0:
        return ""
    if layers < stages:
        return "it has more stages than layers"
    # the embedding and the head may count as a layer each
    return "its layers do not divide by its stages" if layers % stages and (layers + 2) % stages else ""


def size_and_shape(f: Figures) -> Iterator[Finding]:
    """The size a run is called by against what its layers and width hold; people count with or without the embedding."""
    run = f.run
    params, layers, hidden, vocab = (run.get(name) for name in ("params", "n_layers", "d_model", "vocab"))
    if run.stated("d_ff", "n_kv_heads") and (run.get("d_ff") != 4 * hidden or run.get("n_kv_heads") != run.get("n_heads")):
        return  # gated or grouped: the count depends on what the row does not say
    least = 12 * layers * hidden**2
    most = least + 2 * (vocab if math.isfinite(vocab) else 50_000) * hidden
    if not math.isfinite(params * least) or 0.9 * least <= params <= 1.1 * most + hidden * 4096:
        return
    if run.stated("d_ff") and run.get("d_ff") != 4 * hidden:
        return
    work = (
        f"12 x {number(layers)} layers x {number(hidden)}^2 = {least:.3g}, with embeddings up to {most:.3g}; it says {params:.3g}"
    )
    yield _found(f, "size", "likely", "its size does not go with its layers and width", work)


def first_loss(f: Figures) -> Iterator[Finding]:
    """The loss of a model that has learned nothing is ln(vocabulary): every word is as likely as any other."""
    loss, step, vocab = f.run.get("loss"), f.run.numbers.get("loss_step", 0.0), f.shape.vocab
    if not math.isfinite(loss) or step > FIRST_STEPS:
        return
    words = vocab if math.isfinite(vocab) else SMALLEST_VOCABULARY
    fresh = math.log(words)
    known = f"ln {number(words)} = {fresh:.2f}" + (
        "" if math.isfinite(vocab) else " for bytes alone, and any tokenizer has more words"
    )
    if loss < 0.8 * fresh:
        sure: Sure = "sure" if loss < 0.5 * fresh else "likely"
        said = f"a loss of {loss:.4g} at step {number(step)} is far below that of a model that has learned nothing"
        yield _found(
            f,
            "first loss",
            sure,
            f"{said}: it was trained before, or the loss is not per token",
            f"{known}; exp({loss:.4g}) = {math.exp(min(loss, 700)):.2f} words to choose from",
        )
    elif math.isfinite(vocab) and loss > 1.5 * fresh:
        yield _found(
            f,
            "first loss",
            "look",
            f"a loss of {loss:.4g} at step {number(step)} is far above even odds: check the initialization or the loss",
            known,
        )


def above_the_chip(f: Figures) -> Iterator[Finding]:
    """Useful FLOPs against what matrix products reach on the chip, and against its peak."""
    if f.chip is None or not f.mfu:
        return
    fitted = calibrations.choose(f.chip, f.run.text("framework").lower())
    gemm = max(fitted.matmul, calibrations.Calibration().matmul)
    name, share = next(iter(f.mfu.items()))
    if share > 1.0:
        yield _found(
            f, "above the chip", "sure", f"it would run {share:.2g} times above the peak of {f.chip.name}", _share_of(f, name)
        )
    elif share > gemm * GEMM_MARGIN:
        work = f"{_share_of(f, name)}; products of ideal shape reach {gemm:.0%}"
        yield _found(f, "above the chip", "likely", f"it would run faster than matrix products do on {f.chip.name}", work)


def _share_of(f: Figures, name: str) -> str:
    reached = f"{f.tflops[name] / 1e12:.3g} TFLOP/s of {f.peak / 1e12:.4g}, {percent(f.mfu[name])}"
    return f"{number(f.rate)} tok/s x {f.formulas[name]:.4g} FLOPs ({name}) / {number(f.devices)} devices = {reached}"


def printed_flops(f: Figures) -> Iterator[Finding]:
    """Printed TFLOPs (or MFU) against all formulas: none comes close."""
    name, ratio = f.used
    if name or not math.isfinite(ratio) or (not math.isfinite(f.shape.layer_params) and 0.75 < ratio < 1.33):
        return
    if 0.85 < ratio < 1.15:
        return  # sizes that the source rounds, tied embeddings counted twice, gates: no formula is this sure
    least, most = min(f.formulas.values()), max(f.formulas.values())
    shown = f"{number(f.run.get('tflops') / 1e12)} TFLOP/s" if f.run.stated("tflops") else "what it prints"
    work = f"{shown} is {f.printed:.4g} FLOPs a token; formulas give {least:.4g} to {most:.4g}"
    hint = ""
    for factor, reason in ((f.devices, "it is of all devices"), (1 / f.devices, "it was divided by the devices twice")):
        if f.devices > 1 and any(near(f.printed, value * factor, MULTIPLES) for value in f.formulas.values()):
            hint = f": {reason}"
    if not hint and math.isfinite(f.shape.layer_params):
        pairs = [(whole, name) for whole in (2, 3, 4, 8, 1 / 2, 1 / 3, 1 / 4, 1 / 8) for name in f.formulas]
        whole, named = min(pairs, key=lambda pair: abs(math.log(f.printed / (f.formulas[pair[1]] * pair[0]))))
        if near(f.printed, f.formulas[named] * whole, MULTIPLES):
            times = f"{number(whole)} times" if whole >= 1 else f"1/{number(1 / whole)}"
            hint = f": it fits a batch {times} as large ({named})"
    yield _found(f, "printed FLOPs", "likely", f"its TFLOPs or MFU follow from no common formula{hint}", work)


def printed_mfu(f: Figures) -> Iterator[Finding]:
    """Printed MFU against printed TFLOPs over the peak."""
    run = f.run
    share = run.get("mfu") if run.stated("mfu") else run.get("hfu")
    implied = run.get("tflops") / f.peak
    if math.isfinite(share * implied) and not near(share, implied, 0.05):
        work = f"{number(run.get('tflops') / 1e12)} TFLOP/s / {f.peak / 1e12:.4g} = {implied:.1%}, it prints {share:.1%}"
        yield _found(f, "MFU", "likely", "its MFU and its TFLOPs do not belong together, or rest on another peak", work)


def memory_and_chip(f: Figures) -> Iterator[Finding]:
    """More memory than the chip has; of a served model, than all of its chips have."""
    cards = f.devices if f.served and math.isfinite(f.devices) else 1.0
    room = cards * f.chip.memory if f.chip is not None and f.chip.kind in ("gpu", "tpu", "npu") else math.inf
    if f.chip is not None and f.memory > 1.01 * room:
        work = f"{f.memory / GIB:.1f} GiB, and {f'{cards:g} of it have' if cards > 1 else 'it has'} {room / GIB:.1f}"
        sure: Sure = "sure" if f.memory > 1.1 * room else "look"
        yield _found(f, "memory", sure, f"it states more memory than {f.chip.name} has", work)


def forward_and_step(f: Figures) -> Iterator[Finding]:
    """A step is three forward passes of its micro-batches, four with recompute; ten times that is something else."""
    forward, seconds = f.run.get("forward_seconds"), f.run.get("seconds")
    steps = f.run.numbers.get("grad_accum", 1.0)
    if math.isfinite(forward * seconds) and forward > 0 and seconds > 30 * forward * steps:
        longer = f"a step takes {number(seconds)} s: {seconds / (3 * forward * steps):.0f} times as long"
        work = f"3 x {number(forward * 1e3)} ms = {number(3e3 * forward)} ms, {longer}"
        yield _found(
            f, "forward and step", "look", "its forward pass and its step do not fit: most of the step is not the model", work
        )


def rank_balance(f: Figures) -> Iterator[Finding]:
    """Ranks of one step wait for the slowest: rates far apart were not of the same step."""
    rates = f.run.ranks.get("tokens_per_second", ())
    if len(rates) > 1 and f.balance < 0.85:
        yield _found(
            f,
            "balance",
            "look",
            "its ranks are far apart",
            f"{number(min(rates))} to {number(max(rates))} tok/s, the slowest {f.balance:.0%} of the mean",
        )


def not_numbers(f: Figures) -> Iterator[Finding]:
    """Losses that are no numbers."""
    if f.run.numbers.get("nans", 0.0) > 0:
        yield _found(
            f,
            "NaN",
            "sure",
            "some of its losses are NaN or infinite: its speed is that of a broken run",
            f"{number(f.run.get('nans'))} steps",
        )


def served_speed(f: Figures) -> Iterator[Finding]:
    """Each generated token reads every weight once: bandwidth over bytes bounds decoding; prompts are read many tokens at a time."""
    run = f.run
    decode, prefill, users = run.get("decode"), run.get("prefill"), run.numbers.get("users", 1.0)
    size = run.get("model_bytes")
    if f.chip is not None and f.chip.kind == "gpu" and math.isfinite(decode * size) and users == 1:
        cards = f.devices if math.isfinite(f.devices) else 1.0
        bound = f.chip.bandwidth / size * cards
        if decode > bound:
            most = f"{cards:g} x {f.chip.bandwidth / 1e9:.0f} GB/s / {size / 1e9:.2f} GB = {bound:.1f} tok/s"
            work = f"{most} at most, it says {number(decode)}"
            yield _found(f, "above the chip", "likely", "it generates faster than its weights can be read", work)
    if math.isfinite(decode * prefill) and prefill < decode and run.get("prompt") > 32:
        work = f"prompt {number(prefill)} tok/s, generation {number(decode)} tok/s"
        yield _found(
            f, "prompt and generation", "look", "it reads prompts slower than it generates: the two may be exchanged", work
        )


def low_mfu(f: Figures) -> float:
    """The share of the peak by 6N, for what is said of a run that the planner cannot price."""
    return next((share for name, share in f.mfu.items() if name not in RECOMPUTED), math.nan)


RULES: tuple[Rule, ...] = (
    tokens_per_step,
    step_times_rate,
    samples_against_batch,
    ranks_against_total,
    layout_and_devices,
    batch_divides,
    layers_divide,
    size_and_shape,
    first_loss,
    above_the_chip,
    printed_flops,
    printed_mfu,
    memory_and_chip,
    forward_and_step,
    rank_balance,
    not_numbers,
    served_speed,
)
