"""Accuracy of the predicted speed of served models: every target of the project, and the value reached."""

from collections.abc import Callable, Iterator, Sequence

from accuracy import Target
from meshwise.calibrate.score import Score
from meshwise.calibrate.serve.fit import predict_leaving_out, prior_for
from meshwise.calibrate.serve.score import score
from meshwise.catalogue.calibrations import ServeCalibration, choose_serve
from meshwise.catalogue.chips import Chip, host_cpu
from meshwise.catalogue.clusters import find_cluster
from meshwise.catalogue.engines import Runtime, find_runtime
from meshwise.cost.serve.memory.cache import CacheRequest, layer_caches
from meshwise.cost.serve.memory.placement import split_layers, split_tensors
from meshwise.cost.serve.passes.speed import speed
from meshwise.cost.serve.rig import Rig
from meshwise.cost.work import Serve
from meshwise.models.find import find_model
from meshwise.models.formats import find_format, weights
from meshwise.runs import table as tables
from meshwise.runs.serve.case import ServeCase, read_cases
from meshwise.runs.serve.predict import predict

TABLE = "xiongjiedai_llama3_bench"
H200 = {1: 227.0, 8: 1744.0, 32: 6736.0, 64: 13013.0}
"""Tokens/s of Llama-3-8B shapes in bf16 by users, measured on one H200 with a CUDA graph and a short context."""
HELD_OUT = ("h200_transformers_14b", "h200_transformers_3b")
"""Tables of sizes that h200-transformers was not fitted to."""


def left_out(cases: Sequence[ServeCase], groups: Sequence[object]) -> Score:
    return score(cases, [], predict_leaving_out(cases, groups, [prior_for(case) for case in cases]))


def rig_of(name: str) -> Rig:
    cluster = find_cluster(name)
    return Rig.of(cluster, host_cpu(cluster))


def chosen(runtime: Runtime) -> Callable[[Chip], ServeCalibration]:
    """Return the lookup of the catalogue's coefficients by chip."""
    return lambda chip: choose_serve(chip, runtime.key or runtime.engine)


def h200() -> Iterator[tuple[int, float, float]]:
    """Yield users, tokens/s predicted with vLLM's prior, and measured tokens/s."""
    model, runtime, rig = find_model("llama-3-8b"), find_runtime("vllm"), rig_of("h200")
    stored = weights(model)
    for users, measured in H200.items():
        held, work = CacheRequest(context=256, sequences=users), Serve(prompt=128, output=128, users=users, context=256)
        placed = split_tensors(model, stored, layer_caches(model, runtime, held), 1)
        yield users, speed(model, stored, placed, rig, runtime, work, chosen(runtime)).decode_tokens_per_second, measured


def held_out(table: str) -> tuple[float, float]:
    """Return the largest error of decode and of prefill, over all prompts and users."""
    cases = [case for case in read_cases(tables.find_table(table))[0] if case.ran]
    pairs = list(zip(cases, predict(cases), strict=True))
    decode = max(abs(speed.decode / case.decode - 1) for case, speed in pairs)
    return decode, max(abs(speed.prefill / case.prefill - 1) for case, speed in pairs)


def seventy() -> dict[int, float]:
    """Return seconds per token of a 70B in Q4_K_M on 2, 4 and 6 RTX 3090, split by layers."""
    model, runtime = find_model("llama-3-70b"), find_runtime("llama.cpp-2024-05")
    stored = weights(model, find_format("q4_k_m"))
    steps: dict[int, float] = {}
    for cards in (2, 4, 6):
        placed = split_layers(stored, layer_caches(model, runtime, CacheRequest(context=512)), [1.0] * cards)
        work = Serve(prompt=0, output=512, context=512)
        steps[cards] = speed(model, stored, placed, rig_of(f"{cards}xrtx3090"), runtime, work, chosen(runtime)).step
    return steps


def targets() -> Iterator[Target]:
    cases, _ = read_cases(tables.find_table(TABLE))
    by_count, by_card = left_out(cases, [case.group for case in cases]), left_out(cases, [case.chip.key for case in cases])
    yield Target("decode tokens/s, leave one GPU count out of the fit, mean", by_count["decode"]["mape"], 0.06, 0.03)
    yield Target("decode tokens/s, leave one card out, priors only, mean", by_card["decode"]["mape"], 0.30, 0.12)
    yield Target("prefill tokens/s, leave one GPU count out, mean", by_count["prefill"]["mape"], 0.25, 0.12)
    times = seventy().values()
    yield Target("70B Q4_K_M on 2, 4, 6 RTX 3090: decode flat within", max(times) / min(times) - 1, 0.05, 0.05)
    yield Target("H200, 8B, 1 to 64 users: largest error", max(abs(p / m - 1) for _, p, m in h200()), 0.10, 0.10)
    for table in HELD_OUT:
        decode, prefill = held_out(table)
        yield Target(f"{table}, fitted on the 8B: decode, largest error", decode, 0.10, 0.10)
        yield Target(f"{table}, fitted on the 8B: prefill, largest error", prefill, 0.15, 0.15)
    for table in ("llamacpp_fit_dryrun", "xiongjiedai_memory_buffers"):
        rows, _ = read_cases(tables.find_table(table))
        memory = score(rows, [], predict(rows))["memory"]
        yield Target(f"weights and cache, largest error in MiB: {table}", memory["max_mib"], 1, 1, percent=False)
    failed = [case for case in cases if not case.ran]
    yield Target("runs out of memory that are predicted", sum(not c.fits for c in failed), len(failed), len(failed), True, False)


def main() -> None:
    print(f"{'':<72} {'reached':>8} {'must':>8} {'aim':>8}")
    for target in targets():
        print(target.line())
    print("\nH200, Llama-3-8B in bf16:", ", ".join(f"{u} users {p:,.0f} ({m:,.0f} measured)" for u, p, m in h200()))
    print("70B Q4_K_M on RTX 3090:", ", ".join(f"{cards} cards {1000 * step:.1f} ms" for cards, step in seventy().items()))
    slow = sum(case.slow_prompt for case in read_cases(tables.find_table(TABLE))[0])
    print(f"Excluded from both prefill means: {slow} prompts over 3 times slower than in another format on the same devices.")


if __name__ == "__main__":
    main()
