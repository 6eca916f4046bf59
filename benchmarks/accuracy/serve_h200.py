"""The transformers engine on one GPU: prompts of 128 to 8192 tokens, 1 to 64 users, four models. Rows go to $OUT/serve_h200.csv.

    PYTHONPATH=src OUT=/tmp python3 benchmarks/accuracy/serve_h200.py            # on the GPU machine: needs only torch and transformers
    python benchmarks/accuracy/serve_h200.py --compare serve_h200.csv            # anywhere: fit on the 8B, predict the others

MODELS=a,b measures only these models; SECONDS_LEFT limits the time. The first command prints the time of a step and the difference
between the logits of the fused layers and HF's; the second prints the errors of the predictions.
"""

import csv
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from meshwise.catalogue import calibrations
from meshwise.workers.decoder.rows import COLUMNS, row
from meshwise.workers.decoder.settings import Job, Point

FITTED, OTHERS = "llama-3-8b", ("llama-3.2-3b", "qwen2.5-14b", "llama-3.2-1b")
PROMPTS, USERS, OUTPUT = (128, 512, 2048, 8192), (1, 2, 4, 8, 16, 32, 64), 32
MUST = ((1, 170.0, 210.0), (32, 4500.0, 4500.0))
"""Users, required tokens/s on an H200, and desired tokens/s."""


def config(name: str) -> dict[str, Any]:
    """Read a preset without the catalogue, whose dependencies are not installed on the GPU machine."""
    path = Path(__file__).parents[2] / "src" / "meshwise" / "data" / "models" / f"{name}.json"
    values = json.loads(path.read_text(encoding="utf-8"))
    return {key: value for key, value in values.items() if key != "meshwise"}


def worker(job: Job, limit: float) -> list[dict[str, Any]]:
    """Return the lines that the worker printed, as JSON; those printed before it is stopped at the limit also count."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "job.json")
        file.write_text(job.to_json(), encoding="utf-8")
        command = [sys.executable, "-m", "meshwise.workers.decoder", str(file)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False)
            out, err = done.stdout, done.stderr
        except subprocess.TimeoutExpired as late:
            out = late.stdout.decode() if isinstance(late.stdout, bytes) else late.stdout or ""
            err = f"stopped after {limit:.0f} s"
    lines = [json.loads(line) for line in out.splitlines() if line.startswith("{")]
    if not lines or err.strip():
        print(f"{job.name}: {err.strip()[-700:]}", flush=True)
    return lines


def same_as_hf() -> None:
    """Compare the logits of four fused layers of the 8B with HF's, for prompts and for a step with one and with four users."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from meshwise.workers.decoder import fused

    torch.manual_seed(0)
    values: dict[str, Any] = config(FITTED) | {"num_hidden_layers": 4}
    with torch.device("cuda"), torch.no_grad():
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**values), dtype=torch.bfloat16).eval()
        tokens = torch.randint(values["vocab_size"], (4, 301))
        reference = model(tokens).logits[:, -2:].float()
        converted = fused.convert(model, 320)
        for users, tiled in ((4, False), (1, False), (1, True)):
            blank = torch.zeros(users, 8, 320, 128, dtype=torch.bfloat16)
            cache = [(blank.clone(), blank.clone()) for _ in range(4)]
            converted.tiles = fused.fastest_tiles(converted) if tiled else {}
            first = fused.prefill(converted, tokens[:users, :300], torch.arange(300).repeat(users), cache)
            then = fused.decode(converted, tokens[:users, 300], torch.full((users,), 300), cache, 8)
            scale = reference.abs().max()
            off = [float((seen.float() - reference[:users, i]).abs().max() / scale) for i, seen in enumerate((first, then))]
            print(f"logits against HF's, {users} users, own products {tiled}: prompt {off[0]:.4f}, step {off[1]:.4f}", flush=True)
            print(f"  tiles {converted.tiles}" if tiled else "", flush=True)


def measure(folder: Path, seconds: float) -> None:
    begin = time.monotonic()
    named = os.environ.get("MODELS", "").split(",") if os.environ.get("MODELS") else []
    try:
        if not named:
            same_as_hf()
    except Exception as error:  # the measurements below are useful even if the comparison fails
        print(f"the comparison with HF failed: {type(error).__name__}: {error}", flush=True)
    rows: list[dict[str, Any]] = []
    best: dict[int, float] = {}
    short = (Point(prompt=128, output=64, users=1), Point(prompt=128, output=64, users=32))
    jobs = [Job(name=FITTED, model=config(FITTED), points=short, variant=variant) for variant in ("", "library", "static")]
    grid = tuple(Point(prompt=p, output=OUTPUT, users=u) for u in USERS for p in PROMPTS)
    jobs = [] if named else jobs
    jobs += [Job(name=name, model=config(name), points=grid) for name in named or (FITTED, *OTHERS)]
    for job in jobs:
        left = seconds - (time.monotonic() - begin)
        if left < 30:
            print(f"no time left for {job.name}", flush=True)
            continue
        lines = worker(job, left)
        for line in lines:
            if line.get("event") != "point":
                print(json.dumps(line), flush=True)
        ready = next((line for line in lines if line.get("event") == "ready"), None)
        points = [line for line in lines if line.get("event") == "point"]
        print(f"{len(points)} points, {time.monotonic() - begin:.0f} s so far", flush=True)
        show(job, points)
        for line in points:
            if job.name == FITTED and line["outcome"] == "ok" and line["prompt"] == 128:
                rate = line["users"] * line["output"] / statistics.median(line["decode_s"])
                best[line["users"]] = max(best.get(line["users"], 0.0), rate)
        if ready and not job.variant and job.points is grid:
            facts = {
                "source": f"benchmarks/accuracy/serve_h200.py, {time.strftime('%Y-%m-%d')}",
                "model": job.name,
                "quant": "bf16",
            }
            facts |= {"bits_per_weight": "16.00", "engine": "transformers", "gpu": ready["device"].removeprefix("NVIDIA ")}
            facts |= {"params_b": f"{ready['params'] / 1e9:.2f}", "n_gpus": 1, "n_hosts": 1, "split": "none"}
            rows += [row(line, facts | {"note": f"torch {ready['torch']}"}) for line in points]
            write(folder / "serve_h200.csv", rows)
    for users, must, aim in MUST:
        print(f"{FITTED}, {users} users: {best.get(users, 0.0):.0f} tok/s; must {must:.0f}, aim {aim:.0f}", flush=True)


def show(job: Job, points: list[dict[str, Any]]) -> None:
    """Print milliseconds per step by users and prompt, and per prompt by its length, compactly for a short terminal log."""
    print(
        f"{job.name} {job.variant or 'own products'}, {points[0]['variant'] if points else 'nothing measured'}: ms a step",
        flush=True,
    )
    for users in dict.fromkeys(line["users"] for line in points):
        cells = [f"{line['prompt']}: {step(line)}" for line in points if line["users"] == users]
        print(f"  {users:>3} users  {'  '.join(cells)}", flush=True)
    prompts = {line["prompt"]: line["prefill_s"] for line in points if line["outcome"] == "ok"}
    cells = [f"{prompt}: {1e3 * statistics.median(seconds):.3f}" for prompt, seconds in prompts.items()]
    print(f"  prompts, ms  {'  '.join(cells)}", flush=True)


def step(line: dict[str, Any]) -> str:
    """Return the median milliseconds of a decode step, or the outcome of a point that failed."""
    return f"{1e3 * statistics.median(line['decode_s']) / line['output']:.4f}" if line["outcome"] == "ok" else line["outcome"]


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
        table.writeheader()
        table.writerows(rows)


def compare(path: Path) -> None:
    """Fit on the 8B alone, predict every row, and print the largest and the mean error by model."""
    from dataclasses import replace

    from meshwise.calibrate.serve import fit
    from meshwise.runs.serve.case import read_cases
    from meshwise.runs.serve.predict import predict

    cases = read_cases(path)[0]
    fitted = [case for case in cases if case.model.name == FITTED]
    made = fit.fit(fitted, replace(calibrations.serve_prior(fitted[0].chip, fitted[0].runtime.key)))
    print({name: float(f"{getattr(made, name):.4g}") for name in fit.WIDTHS})
    for name in dict.fromkeys(case.model.name for case in cases):
        rows = [case for case in cases if case.model.name == name and case.ran]
        speeds = predict(rows, made)
        decode = [s.decode / c.decode - 1 for c, s in zip(rows, speeds, strict=True)]
        first = {c.work.prompt: s.prefill / c.prefill - 1 for c, s in zip(rows, speeds, strict=True)}
        mean = [statistics.mean(map(abs, part)) for part in (decode, first.values())]
        most = [max(part, key=abs) for part in (decode, first.values())]
        print(f"{name:<14} decode {100 * mean[0]:5.1f}% mean, {100 * most[0]:+6.1f}% at most   ", end="")
        print(f"prefill {100 * mean[1]:5.1f}% mean, {100 * most[1]:+6.1f}% at most")
        for case, error in zip(rows, decode, strict=True):
            if abs(error) > 0.1:
                print(f"    {case.work.prompt} {case.work.users} users: decode {100 * error:+.1f}%")
        for prompt, error in first.items():
            print(f"    prompt {prompt}: prefill {100 * error:+.1f}%")


if __name__ == "__main__":
    if "--compare" in sys.argv:
        compare(Path(sys.argv[-1]))
    else:
        measure(Path(os.environ.get("OUT", ".")), float(os.environ.get("SECONDS_LEFT", "420")))
