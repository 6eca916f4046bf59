"""Energy of runs on one GPU, predicted before they start and metered by `run/meter.py`: `python benchmarks/accuracy/energy_h200.py` there.

Idle, training (Llama 3.2 1B, LoRA of Llama 3 8B, OLMoE), decode, prompts, requests of both, copies; then training and decode at lower
power limits where nvidia-smi may set them, and the power of a probe. $OUT/energy.jsonl has a row each: predicted and metered seconds,
watts and joules of one repeat. Ends within 190 s. `... energy_h200.py predict CHIP` prints predictions and needs no GPU;
`... energy_h200.py score FILE` prints errors. Needs torch; decode needs transformers.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks/trainer"))
sys.path.insert(0, str(ROOT / "src"))
OUT = Path(os.environ.get("OUT", "."))
BEGAN, LIMIT, EACH = time.monotonic(), 190.0, 5.0
"""Seconds after which nothing starts, and seconds of one workload."""
CHIP = sys.argv[2] if sys.argv[1:2] == ["predict"] else "h200"
PROMPT, OUTPUT = 1024, 128
LIMITS = (500.0, 400.0)
COPIED = 4 * 2**30
LORA = {"finetune": {"method": "lora", "rank": 16, "alpha": 32.0, "targets": ["all-linear"]}}
TRAINED: dict[str, tuple[str, int, int, dict[str, Any], str]] = {
    "train 1b": ("llama-3.2-1b", 8, 2048, {}, ""),
    "train 8b lora": ("llama-3-8b", 4, 2048, LORA, "lora:16:all-linear"),
    "train olmoe": ("olmoe-1b-7b", 4, 2048, {}, ""),
}
SERVED = {"requests 8b, 1 user": 1, "requests 8b, 32 users": 32}


def predicted() -> dict[str, tuple[float, float]]:
    """Return seconds and watts of one repeat of each workload, as `plan` and `serve` predict them."""
    from meshwise import api
    from meshwise.catalogue.chips import find_chip
    from meshwise.catalogue.power import power_of
    from meshwise.cost.power import Activity, device_watts
    from meshwise.plan.ask import EnergyAsk, ServeAsk
    from meshwise.plan.serve import energy
    from meshwise.run.bench.speeds import Setting
    from meshwise.run.serve.deployment import deployment

    chip = find_chip(CHIP)
    power, tdp = power_of(chip), chip.tdp or 0.0
    found, rate = {"idle": (1.0, power.idle * tdp)}, 0.0
    for name, (model, batch, seq, _, words) in TRAINED.items():
        plan = api.plan(model, on=f"1x{CHIP}", batch=f"{batch}x{seq}", seq=seq, framework="meshwise", finetune=words)
        assert plan.energy
        found[name] = plan.best.step, plan.energy.watts
        rate = plan.question().calibration.memory
        for limit in LIMITS:
            lower = api.plan(
                model, on=f"1x{CHIP}", batch=f"{batch}x{seq}", seq=seq, framework="meshwise", finetune=words, power_limit=limit
            )
            assert lower.energy
            found[f"{name} at {limit:g} W"] = lower.best.step * lower.energy.slower, lower.energy.watts
    found["copies"] = 2 * COPIED / (rate * chip.bandwidth), device_watts(power, tdp, Activity(memory=rate))
    planned = deployment(ServeAsk("llama-3-8b", on=f"1x{CHIP}", engine="transformers", context=2 * PROMPT))
    for name, users in SERVED.items():
        setting = Setting(prompt=PROMPT, output=OUTPUT, users=users)
        option, q = planned.predict(setting), planned.at(setting)
        assert option
        assert option.speed
        whole = energy.served(planned.ask, q, option)
        assert whole
        found[name] = users * OUTPUT / option.throughput, whole.watts
        seconds, first, speed = OUTPUT * option.speed.step, option.speed.prefill_seconds, option.speed
        work = energy.Work(
            decoding=seconds, prompting=0.0, seconds=seconds, users=users, step=speed.step, context=PROMPT + OUTPUT / 2,
            prompt_rate=speed.prefill_tokens_per_second,
        )  # fmt: skip
        for limit in (0.0, *LIMITS):
            decode = energy.spent(EnergyAsk(power_limit=limit), q, option, [work], seconds)
            assert decode
            label = name.replace("requests", "decode") + (f" at {limit:g} W" if limit else "")
            found[label] = seconds * decode.slower, decode.watts
        prompts = energy.spent(EnergyAsk(), q, option, [replace(work, decoding=0.0, prompting=first, seconds=first)], first)
        assert prompts
        found["prompt 8b"] = first, prompts.watts
    return found


def record(name: str, **values: object) -> None:
    """Write a row, and print it."""
    line = json.dumps({"name": name, "at": round(time.monotonic() - BEGAN, 1), **values})
    with (OUT / "energy.jsonl").open("a", encoding="utf-8") as table:
        table.write(line + "\n")
    print(line, flush=True)


def metered(
    name: str, call: Callable[[], object], forecast: dict[str, tuple[float, float]], seconds: float = EACH, **facts: object
) -> None:
    """Repeat a call for some seconds after a warm-up of a second, and record what the shipped meter saw of it."""
    import torch

    from meshwise.run.meter import Meter

    def run(lasting: float) -> tuple[float, float, int]:
        begin, done = time.time(), 0
        while time.time() - begin < lasting:
            call()
            torch.cuda.synchronize()
            done += 1
        return begin, time.time(), done

    if time.monotonic() - BEGAN > LIMIT - seconds - 2:
        record(name, skipped="no time left", **facts)
        return
    with Meter(devices=1) as meter:
        run(1.0)
        begin, end, done = run(seconds)
        time.sleep(0.3)
    seen = meter.between(begin, end)
    if seen is None:
        record(name, failed="the meter has no reading", **facts)
        return
    wanted = dict(zip(("predicted_seconds", "predicted_watts"), forecast.get(name, ()), strict=False))
    record(
        name, repeats=done, seconds=seen.seconds / done, watts=seen.watts, joules=seen.joules / done, meter=seen.meter, **wanted,
        **facts,
    )  # fmt: skip


def idle(forecast: dict[str, tuple[float, float]]) -> None:
    """Before any program opens the device."""
    from meshwise.run.meter import Meter

    with Meter(devices=1) as meter:
        begin = time.time()
        time.sleep(5)
        end = time.time()
        time.sleep(0.3)
    seen = meter.between(begin + 1.5, end)
    record(
        "idle",
        seconds=1.0,
        watts=seen and seen.watts,
        joules=seen and seen.watts,
        predicted_seconds=1.0,
        predicted_watts=forecast["idle"][1],
    )


def training(forecast: dict[str, tuple[float, float]]) -> None:
    """Steps as `meshwise run` takes them; the first model also at lower power limits."""
    import torch

    import train

    for name, (model, batch, seq, options, _) in TRAINED.items():
        try:
            stepper: Any = train.ready(model, batch, seq, {"compile": False, **options})[1]
            data = torch.randint(0, 256, (2, batch, seq)).pin_memory()
            for _ in range(4):
                stepper.launch(12, data[0], data[1])

            def step(stepper: Any = stepper, data: Any = data) -> None:
                stepper.launch(12, data[0], data[1])

            metered(name, step, forecast, batch=batch, seq=seq)
            if name == "train 1b":
                limited(name, step, forecast)
            del step
        except Exception as error:  # the other workloads go on
            record(name, failed=f"{type(error).__name__}: {str(error)[:300]}")
        stepper = None
        torch.cuda.empty_cache()


def serving(forecast: dict[str, tuple[float, float]]) -> None:
    """Prompts, decode steps and whole requests of Llama 3 8B by our decoder, and decode at lower power limits."""
    import train
    from meshwise.workers.decoder.session import build
    from meshwise.workers.decoder.settings import Job, Point

    points = {name: Point(prompt=PROMPT, output=OUTPUT, users=users) for name, users in SERVED.items()}
    timed = build(Job(name="llama-3-8b", model=train.preset("llama-3-8b"), points=tuple(points.values())))
    for name, point in points.items():
        steps = timed.steps(point)
        prompt = timed.prompt(PROMPT)  # last, so that nothing is allocated over the tokens that its graph reads
        metered(name.replace("requests", "decode"), steps, forecast)
        if point.users == 1:
            limited("decode 8b, 1 user", steps, forecast)
            metered("prompt 8b", prompt, forecast)

        def requests(point: Point = point, prompt: Callable[[], object] = prompt, steps: Callable[[], object] = steps) -> None:
            for _ in range(point.users):
                prompt()
            steps()

        metered(name, requests, forecast)


def copies(forecast: dict[str, tuple[float, float]]) -> None:
    import torch

    big, other = (torch.randn(COPIED // 4, device="cuda") for _ in range(2))
    metered("copies", lambda: other.copy_(big), forecast)


def limited(name: str, call: Callable[[], object], forecast: dict[str, tuple[float, float]]) -> None:
    """The same work at lower power limits, where the driver permits them."""
    for watts in LIMITS:
        done = subprocess.run(["nvidia-smi", "-pl", f"{watts:g}"], capture_output=True, text=True, check=False)
        if done.returncode:
            record(f"{name} at {watts:g} W", failed=(done.stdout + done.stderr).strip()[-200:])
            return
        try:
            metered(f"{name} at {watts:g} W", call, forecast, 3.0)
        finally:
            subprocess.run(["nvidia-smi", "-pl", "700"], capture_output=True, check=False)


def probed(_: dict[str, tuple[float, float]]) -> None:
    """The power rows of `meshwise probe`."""
    from meshwise.run.probe.measure import Session, measure

    left = LIMIT + 5 - (time.monotonic() - BEGAN)
    if left < 20:
        record("probe", skipped="no time left")
        return
    for row in measure(Session("here", 1, min(20.0, left - 8)), "cuda", lambda _what, _done: None):
        if row["kind"] == "power":
            record(f"probe: {row['what']}", **{key: row[key] for key in ("watts", "seconds", "meter")})


def score(path: Path) -> None:
    """Print the error of energy, time and power of every row."""
    rows = {row["name"]: row for row in map(json.loads, path.read_text(encoding="utf-8").splitlines())}
    print(f"{'':28}{'J predicted':>12}{'metered':>10}{'energy':>9}{'time':>8}{'power':>8}")
    for name, row in rows.items():
        if row.get("predicted_watts") and row.get("watts"):
            joules, time_error = row["predicted_seconds"] * row["predicted_watts"], row["predicted_seconds"] / row["seconds"] - 1
            error, watts = joules / row["joules"] - 1, row["predicted_watts"] / row["watts"] - 1
            print(f"{name:28}{joules:12.4g}{row['joules']:10.4g}{error:+9.1%}{time_error:+8.1%}{watts:+8.1%}")
        else:
            print(f"{name:28} {json.dumps({key: value for key, value in row.items() if key != 'name'})}")


def main() -> None:
    (OUT / "energy.jsonl").unlink(missing_ok=True)
    forecast = predicted()
    record("predicted", **{name: [round(value, 6) for value in pair] for name, pair in forecast.items()})
    for phase in (idle, training, copies, serving, probed):
        try:
            phase(forecast)
        except Exception as error:  # the other phases go on
            record(phase.__name__, failed=f"{type(error).__name__}: {str(error)[:400]}")
    score(OUT / "energy.jsonl")


if __name__ == "__main__":
    if sys.argv[1:2] == ["score"]:
        score(Path(sys.argv[2]))
    elif sys.argv[1:2] == ["predict"]:
        for name, (seconds, watts) in predicted().items():
            print(f"{name:28}{seconds:10.5f} s {watts:6.0f} W {seconds * watts:10.4g} J")
    else:
        main()
