"""Forty questions: does the first row fit with at least 90%, can it be written for its program, and does `check` say that it starts?

python benchmarks/accuracy/first_rows.py            all
python benchmarks/accuracy/first_rows.py 3 7        these alone
"""

import sys
import tempfile
from pathlib import Path
from typing import Any

import meshwise as mw
from meshwise.errors import UserError
from meshwise.programs.writable import program_for

TRAININGS = (
    ("llama-3-8b", "1x8xh100-sxm", "128x8192", ""),
    ("llama-3-8b", "16x8xh100-sxm", "1M", ""),
    ("llama-3-70b", "64x8xh100-sxm", "4M", ""),
    ("llama-3-70b", "8x8xh200", "1M", ""),
    ("llama-3.1-405b", "2048x8xh100-sxm", "2048x8192", ""),
    ("llama-3.1-405b", "128x8xh100-sxm", "252x8192", ""),
    ("mixtral-8x7b", "8x8xh100-sxm", "1M", ""),
    ("deepseek-v3", "256x8xh800-sxm", "15360x4096", ""),
    ("qwen3-30b-a3b", "4x8xh100-sxm", "1024x4096", ""),
    ("qwen3-235b-a22b", "32x8xh100-sxm", "1024x4096", ""),
    ("bloom-176b", "jean-zay:48", "2048x2048", ""),
    ("gpt3-175b", "128x8xa100-80gb", "1536x2048", ""),
    ("llama-2-7b", "1x8xa100-80gb", "64x4096", ""),
    ("llama-2-13b", "4x8xa100-40gb", "256x4096", ""),
    ("nemotron-4-340b", "768x8xh100-sxm", "2304x4096", ""),
    ("olmo-2-32b", "128x8xh100-sxm", "2048x4096", ""),
    ("apertus-70b", "alps:1024", "4096x4096", ""),
    ("llama-3-70b", "tpu-v5p:8x8x8", "1024x8192", ""),
    ("gpt2", "1xrtx4090", "64x1024", ""),
    ("llama-3.2-1b", "2xrtx3090", "64x2048", ""),
    ("llama-3-8b", "dgx-b200:4", "512x8192", ""),
    ("llama-3-70b", "gb200-nvl72:2", "1152x8192", ""),
    ("llama-3.1-8b", "1xrtx3090", "8x2048", "qlora:16"),
    ("llama-3.1-8b", "1xh100-sxm", "32x4096", "lora:16"),
    ("llama-3.1-70b", "1x8xh100-sxm", "32x4096", "lora:16"),
    ("qwen2.5-14b", "2xrtx4090", "16x2048", "qlora:16"),
    ("mistral-7b", "1x8xa100-80gb", "64x4096", "full"),
    ("llama-3.1-8b", "2xrtx4090", "16x2048", "lora:8"),
)
SERVINGS = (
    ("llama-3.3-70b", "4xh100-sxm", {"users": 32}),
    ("llama-3.1-8b", "1xrtx4090", {}),
    ("qwen3-32b", "8xh100-sxm", {"users": 200}),
    ("deepseek-v3", "8xh200", {"users": 64}),
    ("gpt-oss-20b", "1xrtx3090", {}),
    ("gpt-oss-120b", "1xh100-sxm", {"users": 16}),
    ("llama-3.3-70b:q4_k_m", "4xrtx4060ti-16gb", {"context": 16384}),
    ("qwen3-30b-a3b", "1xm3-ultra-256gb", {}),
    ("mixtral-8x7b", "2xa100-80gb", {"users": 16}),
    ("gemma-3-27b", "1xl40s", {"users": 8}),
    ("llama-3.1-8b", "1xl4", {"users": 4}),
    ("qwen3-235b-a22b", "8xh200", {"users": 64}),
)


def starts(plan: Any, program: str, folder: Path, on: str) -> str:
    """Return 'starts' where the exported files are read back as files that start and fit, else the verdict."""
    out = folder / "out"
    mw.export(plan, to=program).save(out)
    files = sorted(
        path for path in out.iterdir() if path.suffix in (".sh", ".toml", ".yaml", ".yml", ".sbatch") and path.is_file()
    )
    verdict = mw.check(str(next((path for path in files if path.name.startswith(("train.sh", "serve.sh"))), files[0])), on=on)
    return "starts" if verdict.starts and verdict.fits is not False else verdict.line


def planned(kind: str, model: str, on: str, rest: list[Any]) -> tuple[Any, float, str]:
    """Return the plan of a question, the chance that its first row fits, and the program that it is written for."""
    if kind == "serve":
        served = mw.serve(model=model, on=on, **rest[0])
        return served, served.best.p_fit, served.ask.engine or served.engine
    batch, tuned = rest
    words: dict[str, Any] = {"finetune": tuned} if tuned else {}
    plan = mw.plan(model=model, on=on, batch=batch, **words)
    written = program_for(plan)
    return plan, plan.best.p_fit, written.name if written else "no program"


def main() -> None:
    chosen = {int(word) for word in sys.argv[1:]}
    good = 0
    questions: list[tuple[Any, ...]] = [("train", *row) for row in TRAININGS] + [("serve", *row) for row in SERVINGS]
    for number, (kind, model, on, *rest) in enumerate(questions, 1):
        if chosen and number not in chosen:
            continue
        with tempfile.TemporaryDirectory() as folder:
            try:
                plan, chance, program = planned(kind, model, on, rest)
                word = starts(plan, program, Path(folder), on)
            except (UserError, StopIteration, OSError) as error:
                chance, program, word = 0.0, "", f"{type(error).__name__}: {error}"
        well = chance >= 0.9 and word == "starts"
        good += well
        print(
            f"{number:>3} {'ok ' if well else 'NOT'} {model} on {on} {rest}: P(fit) {chance:.0%}, {program}: {word}", flush=True
        )
    print(f"{good} of {len(chosen) or len(questions)}")


if __name__ == "__main__":
    main()
