"""Rules over one run: figures that contradict each other. A rule yields nothing where a figure that it needs is not stated."""

import math
from collections.abc import Callable, Iterator

from meshwise.audit.figures import Figures
from meshwise.audit.finding import Certainty, Finding, near, number, percent
from meshwise.catalogue import calibrations
from meshwise.units import GIB, figure

MIN_VOCABULARY = 256  # bytes: no tokenizer has fewer tokens, so the loss of an untrained model is at least ln 256 = 5.5
UNTRAINED_STEPS = 2  # after at most this many updates, a model still has the loss of an untrained one
GEMM_MARGIN = 1.05
RATIO_TOLERANCE = 0.02  # relative difference up to which a ratio counts as a whole number, or as the number of devices
MIN_MFU = 0.01  # training of a dense model with an MFU by 6N below this has a fault

Rule = Callable[[Figures], Iterator[Finding]]


def _finding(f: Figures, rule: str, certainty: Certainty, message: str, arithmetic: str) -> Finding:
    return Finding(rule=rule, certainty=certainty, where=(f.where,), message=message, arithmetic=arithmetic)


def tokens_per_step(f: Figures) -> Iterator[Finding]:
    """Batch x sequence length equals the stated tokens per step."""
    stated, counted = f.run.number("tokens_per_step"), f.batch * f.run.number("seq")
    if not math.isfinite(stated * counted) or near(stated, counted, f.tolerance("tokens_per_step", "batch")):
        return
    share = " (one device's share)" if near(stated * f.devices, counted, RATIO_TOLERANCE) else ""
    work = f"{number(f.batch)} sequences x {number(f.run.number('seq'))} = {number(counted)}"
    message = f"{number(stated)} tokens a step are stated{share}, but the batch has {number(counted)}"
    yield _finding(f, "tokens per step", "certain", message, work)


def step_times_rate(f: Figures) -> Iterator[Finding]:
    """Step time x throughput equals the tokens of a step."""
    seconds, rate, tokens = f.run.number("seconds"), f.stated_rate, f.tokens
    processed = seconds * rate
    names = ("seconds", "tokens_per_second", "tokens_per_second_per_device", "samples_per_second", "batch")
    if not math.isfinite(processed * tokens) or tokens <= 0 or near(processed, tokens, f.tolerance(*names)):
        return
    ratio = processed / tokens
    product = f"{number(rate)} tok/s x {number(seconds)} s = {number(processed)} tokens"
    work = f"{product}, but a step has {number(tokens)}: {ratio:.3g} times as many"
    stated = f.run.number("tokens_per_step")
    if math.isfinite(stated) and not near(stated, tokens, RATIO_TOLERANCE):
        work += f" ({processed / stated:.3g} times the {number(stated)} stated)"
    if f.dp > 1 and "per_device_batch" not in f.run and abs(math.log(ratio / f.dp)) < abs(math.log(ratio)):
        work += f", or {ratio / f.dp:.3g} times if the batch is per device"
    message = "step time and throughput contradict each other"
    for factor, reason in ((f.devices, "the rate is counted once per device"), (1 / f.devices, "the rate is one device's")):
        if math.isfinite(factor) and f.devices > 1 and near(ratio, factor, RATIO_TOLERANCE):
            message += f": {reason}"
    if near(ratio, 1000, RATIO_TOLERANCE) or near(ratio, 1e-3, RATIO_TOLERANCE):
        message += ": one of them is in milliseconds"
    yield _finding(f, "step x throughput", "certain", message, work)


def ranks_against_total(f: Figures) -> Iterator[Finding]:
    """The rates of the ranks sum to the total, and to the rate that the step time gives."""
    rates, total = f.run.ranks.get("tokens_per_second", ()), f.run.number("tokens_per_second")
    if len(rates) < 2:
        return
    whole, mean = sum(rates), sum(rates) / len(rates)
    if math.isfinite(total) and not near(whole, total, f.tolerance("tokens_per_second")):
        message = "each rank prints the total" if near(mean, total, 0.15) else "the ranks do not sum to the total"
        work = f"{len(rates)} ranks sum to {number(whole)} tok/s, the total is {number(total)}"
        yield _finding(f, "ranks and total", "certain", message, work)
    timed = f.tokens / f.run.number("seconds") if f.run.number("seconds") > 0 else math.nan
    if near(timed, mean, 0.15) and not near(timed, whole, 0.15):
        work = (
            f"{number(f.tokens)} tokens / {number(f.run.number('seconds'))} s = {number(timed)} tok/s in total, "
            f"close to the {number(mean)} of each rank; the sum of {number(whole)} is {whole / timed:.1f} times as much"
        )
        message = f"each rank prints the rate of all ranks, so the total is about {len(rates)} times too high"
        yield _finding(f, "ranks and total", "likely", message, work)


def samples_against_batch(f: Figures) -> Iterator[Finding]:
    """Samples per second x step time equals the batch."""
    samples, seconds = f.run.number("samples_per_second"), f.run.number("seconds")
    if not math.isfinite(samples * seconds * f.batch) or math.isfinite(f.stated_rate * f.tokens):
        return  # with a sequence length, `step_times_rate` finds the same in tokens
    if not near(samples * seconds, f.batch, f.tolerance("seconds", "samples_per_second", "batch")):
        work = f"{number(samples)} samples/s x {number(seconds)} s = {number(samples * seconds)}, the batch is {number(f.batch)}"
        message = "step time, samples per second and batch contradict each other"
        yield _finding(f, "step x throughput", "certain", message, work)


def layout_and_devices(f: Figures) -> Iterator[Finding]:
    """The product of the parallel axes equals the number of devices."""
    run = f.run
    if not run.stated("tp", "pp") or not (run.stated("devices") or run.stated("nodes", "devices_per_node")):
        return
    cut = run.number("tp") * run.number("pp") * run.number("cp", 1.0)
    if not run.stated("dp"):
        if f.devices % cut:
            work = f"tp x pp = {number(cut)}, {number(f.devices)} devices"
            yield _finding(f, "layout", "certain", "the parallel axes do not divide the number of devices", work)
        return
    product = cut * run.number("dp")
    if product == f.devices:
        return
    fits = f.devices / cut
    instead = f"; dp {number(fits)} would" if fits == int(fits) else ""
    axes = " x ".join(number(run.number(axis)) for axis in ("dp", "tp", "pp", "cp") if run.stated(axis))
    message = f"the parallel axes do not multiply to the number of devices{instead}"
    yield _finding(f, "layout", "certain", message, f"{axes} = {number(product)}, not {number(f.devices)}")


def batch_divides(f: Figures) -> Iterator[Finding]:
    """Replicas x micro-batch x gradient accumulation equals the batch."""
    run = f.run
    if not run.stated("dp") and not run.stated("tp", "pp"):
        return  # the number of replicas is not known
    if not run.stated("batch", "mbs") or not math.isfinite(f.dp) or f.dp != int(f.dp) or run.rough("batch"):
        return
    slots = f.dp * run.number("mbs")
    batch, steps = run.number("batch"), run.number("accumulation")
    each = f"dp {number(f.dp)} x micro-batch {number(run.number('mbs'))}"
    if math.isfinite(steps) and slots * steps != batch:
        work = f"{each} x {number(steps)} accumulation steps = {number(slots * steps)}, not {number(batch)}"
        message = "replicas x micro-batch x gradient accumulation is not the batch"
        yield _finding(f, "batch", "certain", message, work)
    elif slots and batch % slots:
        message = "the batch is not divisible by replicas x micro-batch"
        yield _finding(f, "batch", "likely", message, f"{number(batch)} / ({each}) = {batch / slots:.3f}")


def layers_divide(f: Figures) -> Iterator[Finding]:
    """A run that succeeded has a layer for every pipeline stage, and attention heads that tp divides."""
    layers, stages, heads, tp = (f.run.number(name) for name in ("layers", "pp", "heads", "tp"))
    if failed(f):
        return
    if 0 < layers < stages:
        work = f"{number(layers)} layers over pp {number(stages)}"
        yield _finding(f, "layers", "certain", "there are more pipeline stages than layers", work)
    if tp > 1 and heads > 0 and heads % tp:
        work = f"{number(heads)} heads / tp {number(tp)} = {heads / tp:.2f}"
        yield _finding(f, "layers", "likely", "the attention heads are not divisible by tp", work)


def failed(f: Figures) -> bool:
    return f.run.text("outcome").lower() in ("fail", "oom")


def failure_reason(f: Figures) -> str:
    """Return why a failed run could not have worked, or '' if its figures do not show it."""
    layers, stages = f.run.number("layers"), f.run.number("pp")
    if f.run.text("outcome").lower() != "fail" or not stages > 1 or not layers > 0:
        return ""
    if layers < stages:
        return "more pipeline stages than layers"
    # the embedding and the head may count as a layer each
    return "layers not divisible by the pipeline stages" if layers % stages and (layers + 2) % stages else ""


def size_and_shape(f: Figures) -> Iterator[Finding]:
    """The stated size agrees with layers and width; sources count with or without the embedding."""
    run = f.run
    params, layers, hidden, vocab = (run.number(name) for name in ("params", "layers", "hidden", "vocab"))
    if run.stated("ffn", "kv_heads") and (run.number("ffn") != 4 * hidden or run.number("kv_heads") != run.number("heads")):
        return  # a gate or grouped heads: the count depends on facts that are not stated
    least = 12 * layers * hidden**2
    most = least + 2 * (vocab if math.isfinite(vocab) else 50_000) * hidden
    if not math.isfinite(params * least) or 0.9 * least <= params <= 1.1 * most + hidden * 4096:
        return
    if run.stated("ffn") and run.number("ffn") != 4 * hidden:
        return
    count = f"12 x {number(layers)} layers x {number(hidden)}^2 = {least:.3g}, with embeddings up to {most:.3g}"
    message = "the stated size does not match the layers and width"
    yield _finding(f, "size", "likely", message, f"{count}; {params:.3g} stated")


def first_loss(f: Figures) -> Iterator[Finding]:
    """The loss of an untrained model is ln(vocabulary): all tokens are equally likely."""
    loss, step, vocab = f.run.number("first_loss"), f.run.number("loss_step", 0.0), f.shape.vocab
    if not math.isfinite(loss) or step > UNTRAINED_STEPS:
        return
    tokens = vocab if math.isfinite(vocab) else MIN_VOCABULARY
    untrained = math.log(tokens)
    assumed = "" if math.isfinite(vocab) else " for a vocabulary of single bytes, the smallest possible"
    known = f"untrained: ln {number(tokens)} = {untrained:.2f}{assumed}"
    if loss < 0.8 * untrained:
        certainty: Certainty = "certain" if loss < 0.5 * untrained else "likely"
        message = (
            f"a loss of {loss:.4g} at step {number(step)} is far below that of an untrained model: "
            "the model was trained before, or the loss is not per token"
        )
        work = f"{known}; exp({loss:.4g}) = {math.exp(min(loss, 700)):.2f} equally likely tokens"
        yield _finding(f, "first loss", certainty, message, work)
    elif math.isfinite(vocab) and loss > 1.5 * untrained:
        message = f"a loss of {loss:.4g} at step {number(step)} is far above uniform guessing: check initialization and loss"
        yield _finding(f, "first loss", "unusual", message, known)


def above_the_chip(f: Figures) -> Iterator[Finding]:
    """Model FLOP/s exceed neither the rate that matrix products reach on the chip, nor its peak."""
    if f.chip is None or not f.mfu:
        return
    fitted = calibrations.fitted_to(f.chip, f.run.text("framework").lower()) or calibrations.prior_of(f.chip)
    gemm = max(fitted.matmul, calibrations.Calibration().matmul)
    name, share = next(iter(f.mfu.items()))
    if share > 1.0:
        message = f"the throughput needs {share:.2g} times the peak of {f.chip.name}"
        yield _finding(f, "above the chip", "certain", message, _share_of_peak(f, name))
    elif share > gemm * GEMM_MARGIN:
        work = f"{_share_of_peak(f, name)}; matrix products of ideal shape reach {gemm:.0%}"
        message = f"the throughput exceeds that of matrix products alone on {f.chip.name}"
        yield _finding(f, "above the chip", "likely", message, work)


def _share_of_peak(f: Figures, name: str) -> str:
    reached = f"{figure(f.device_flops[name] / 1e12)} TFLOP/s of {f.peak_flops / 1e12:.4g}, {percent(f.mfu[name])}"
    return f"{number(f.rate)} tok/s x {f.formulas[name]:.4g} FLOPs ({name}) / {number(f.devices)} devices = {reached}"


def printed_flops(f: Figures) -> Iterator[Finding]:
    """Printed TFLOP/s (or MFU) match a common formula."""
    name, ratio = f.printed_formula
    if name or not math.isfinite(ratio) or (not math.isfinite(f.shape.layer_params) and 0.75 < ratio < 1.33):
        return
    if 0.85 < ratio < 1.15:
        return  # rounded sizes, tied embeddings counted twice and gates explain this much
    least, most = min(f.formulas.values()), max(f.formulas.values())
    shown = f"{number(f.run.number('tflops') / 1e12)} TFLOP/s" if f.run.stated("tflops") else "the printed MFU"
    work = f"{shown} is {f.printed_flops:.4g} FLOPs a token; formulas give {least:.4g} to {most:.4g}"
    message = f"the printed TFLOP/s or MFU match no common formula{_likely_cause(f)}"
    yield _finding(f, "printed FLOPs", "likely", message, work)


def _likely_cause(f: Figures) -> str:
    """Return the simple factor that would make the printed TFLOP/s match a formula, as the end of a sentence, or ''."""
    hint = ""
    for factor, reason in (
        (f.devices, "they are the sum of all devices"),
        (1 / f.devices, "they were divided by the devices twice"),
    ):
        if f.devices > 1 and any(near(f.printed_flops, value * factor, RATIO_TOLERANCE) for value in f.formulas.values()):
            hint = f": {reason}"
    if hint or not math.isfinite(f.shape.layer_params):
        return hint
    pairs = [(factor, name) for factor in (2, 3, 4, 8, 1 / 2, 1 / 3, 1 / 4, 1 / 8) for name in f.formulas]
    factor, name = min(pairs, key=lambda pair: abs(math.log(f.printed_flops / (f.formulas[pair[1]] * pair[0]))))
    if not near(f.printed_flops, f.formulas[name] * factor, RATIO_TOLERANCE):
        return ""
    times = f"{number(factor)} times" if factor >= 1 else f"1/{number(1 / factor)}"
    return f": they match a batch {times} as large ({name})"


def printed_mfu(f: Figures) -> Iterator[Finding]:
    """Printed MFU equals printed TFLOP/s over the peak."""
    run = f.run
    share = run.number("mfu") if run.stated("mfu") else run.number("hfu")
    implied = run.number("tflops") / f.peak_flops
    if math.isfinite(share * implied) and not near(share, implied, 0.05):
        work = f"{number(run.number('tflops') / 1e12)} TFLOP/s / {f.peak_flops / 1e12:.4g} = {implied:.1%}; {share:.1%} printed"
        yield _finding(f, "MFU", "likely", "MFU and TFLOP/s contradict each other, or assume another peak", work)


def memory_and_chip(f: Figures) -> Iterator[Finding]:
    """Stated memory fits the memory of the chip, or of all chips for a served model."""
    chips = f.devices if f.served and math.isfinite(f.devices) else 1.0
    room = chips * f.chip.memory if f.chip is not None and f.chip.kind in ("gpu", "tpu", "npu") else math.inf
    if f.chip is not None and f.memory > 1.01 * room:
        owner = f"{chips:g} devices have" if chips > 1 else "a device has"
        work = f"{f.memory / GIB:.1f} GiB stated, {owner} {room / GIB:.1f} GiB"
        certainty: Certainty = "certain" if f.memory > 1.1 * room else "unusual"
        yield _finding(f, "memory", certainty, f"more memory is stated than {f.chip.name} has", work)


def forward_and_step(f: Figures) -> Iterator[Finding]:
    """A step takes as long as three forward passes of its micro-batches, four with recompute; ten times as long has another cause."""
    forward, seconds = f.run.number("forward_seconds"), f.run.number("seconds")
    steps = f.run.number("accumulation", 1.0)
    if math.isfinite(forward * seconds) and forward > 0 and seconds > 30 * forward * steps:
        longer = f"a step takes {number(seconds)} s: {seconds / (3 * forward * steps):.0f} times as long"
        work = f"3 x {number(forward * 1e3)} ms = {number(3e3 * forward)} ms, {longer}"
        message = "the step is far longer than its forward pass allows: most of it is not spent in the model"
        yield _finding(f, "forward and step", "unusual", message, work)


def rank_balance(f: Figures) -> Iterator[Finding]:
    """All ranks wait for the slowest in each step, so widely different rates are not from the same step."""
    rates = f.run.ranks.get("tokens_per_second", ())
    if len(rates) > 1 and f.rank_balance < 0.85:
        work = f"{number(min(rates))} to {number(max(rates))} tok/s, the slowest {f.rank_balance:.0%} of the mean"
        yield _finding(f, "balance", "unusual", "the rates of the ranks differ widely", work)


def not_numbers(f: Figures) -> Iterator[Finding]:
    """Losses are finite."""
    if f.run.number("nans", 0.0) > 0:
        message = "some losses are NaN or infinite, so the speed is that of a broken run"
        yield _finding(f, "NaN", "certain", message, f"{number(f.run.number('nans'))} steps")


def served_speed(f: Figures) -> Iterator[Finding]:
    """Each generated token reads all weights, so bandwidth / bytes bounds decoding; prompts are read many tokens at a time."""
    run = f.run
    decode, prefill = run.number("decode"), run.number("prefill")
    alone = (
        run.number("users", 1.0) == 1
        and not isinstance(run.value("users"), str)
        and not run.stated("rate")
        and not run.number("draft") > 0
    )
    size = run.number("model_bytes")
    if f.chip is not None and f.chip.kind == "gpu" and math.isfinite(decode * size) and alone:
        chips = f.devices if math.isfinite(f.devices) else 1.0
        bound = f.chip.bandwidth / size * chips
        if decode > bound:
            most = f"{chips:g} x {f.chip.bandwidth / 1e9:.0f} GB/s / {size / 1e9:.2f} GB = {bound:.1f} tok/s"
            work = f"at most {most}, {number(decode)} stated"
            yield _finding(f, "above the chip", "likely", "it generates faster than its weights can be read from memory", work)
    if math.isfinite(decode * prefill) and prefill < decode and run.number("prompt") > 32:
        work = f"prompt {number(prefill)} tok/s, generation {number(decode)} tok/s"
        message = "prompts are processed slower than tokens are generated: the two figures may be swapped"
        yield _finding(f, "prompt and generation", "unusual", message, work)


def low_utilization(f: Figures, grade: str) -> Iterator[Finding]:
    """MFU by 6N is not so low that the run has a fault. For runs without a predicted step time; `grade`: how the document grades itself."""
    share = f.model_mfu if f.mfu else f.run.number("mfu")
    if not 0 < share < MIN_MFU or f.served or (f.chip and f.chip.kind == "cpu"):
        return
    reached = f"{figure(f.device_flops.get('6N', math.nan) / 1e12)} TFLOP/s of {f.peak_flops / 1e12:.4g}"
    work = f"6N x {number(f.rate)} tok/s / {number(f.devices)} devices = {reached}" if "6N" in f.mfu else percent(share)
    message = f"it uses {percent(share)} of the peak of {f.chip.name if f.chip else 'its devices'}{graded(grade)}"
    yield _finding(f, "low MFU", "likely", message, work)


def graded(grade: str) -> str:
    return f" (the document grades itself: {grade})" if grade else ""


RULES: tuple[Rule, ...] = (
    tokens_per_step, step_times_rate, samples_against_batch, ranks_against_total, layout_and_devices, batch_divides,
    layers_divide, size_and_shape, first_loss, above_the_chip, printed_flops, printed_mfu, memory_and_chip, forward_and_step,
    rank_balance, not_numbers, served_speed,
)  # fmt: skip
