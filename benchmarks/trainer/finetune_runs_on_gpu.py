"""`meshwise run --finetune` as typed, on a GPU: `python benchmarks/trainer/finetune_runs_on_gpu.py FOLDER [MODEL] [RUN OPTION...]`.

Writes conversations, a tokenizer with a chat template and random weights to FOLDER, fine-tunes them by LoRA, QLoRA with dropout and
merged, DoRA merged, and whole, all with packed conversations, resumes the LoRA run for further steps, and lists what each run left. Fails
if a run fails, its loss does not fall, or a file that it promises is missing. The runs go at the same time: this shows that they work,
not how fast they are.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

STEPS = 12
LIMIT = float(os.environ.get("LIMIT", "300"))
"""Seconds for everything; a run that takes longer is ended, and the end of its output shown."""
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
METHODS = {
    "lora": ["--finetune", "lora:16", "--checkpoint-every", "6"],
    "qlora": ["--finetune", "qlora:16", "--lora-dropout", "0.05", "--merge"],
    "dora": ["--finetune", "dora:16", "--merge"],
    "full": ["--finetune", "full", "--save"],
}
MORE_STEPS = 4
"""Steps that the LoRA run makes after it was resumed."""


def write_conversations(folder: Path) -> None:
    """Write questions about sums, whose answers a model can learn to shape in a few steps."""
    rows = [
        [{"role": "user", "content": f"What is {i} plus {i + 3}?"}, {"role": "assistant", "content": f"{i} plus {i + 3} is {2 * i + 3}."}]
        for i in range(600)
    ]  # fmt: skip
    (folder / "chat.jsonl").write_text("\n".join(json.dumps({"messages": row}) for row in rows), encoding="utf-8")


def write_tokenizer(folder: Path) -> None:
    """Write a tokenizer of bytes in HF's format, beside the weights."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    library: Any = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens(["<|im_start|>", "<|im_end|>", "</s>"])
    library.save(str(folder / "tokenizer.json"))
    config = {"chat_template": TEMPLATE, "eos_token": "</s>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config), encoding="utf-8")


def started(model: str, out: Path, options: list[str]) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "meshwise", "run", model, "--out", str(out), *options]
    print("$", " ".join(["meshwise", *command[3:]]), flush=True)
    with out.with_suffix(".log").open("w", encoding="utf-8") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, text=True)


def ended(running: subprocess.Popen[str], out: Path, until: float) -> None:
    """Wait for a run; raise with the end of its output where it fails, or takes too long."""
    try:
        code = running.wait(max(1.0, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        running.terminate()
        code = None
    if code != 0:
        told = "took too long" if code is None else f"ended with {code}"
        raise SystemExit(f"{out.name} {told}:\n{out.with_suffix('.log').read_text(encoding='utf-8')[-3000:]}")


def described(name: str, out: Path) -> str:
    """Return what a run left."""
    log = out.with_suffix(".log").read_text(encoding="utf-8")
    steps = [json.loads(line) for line in (out / "steps.jsonl").read_text(encoding="utf-8").splitlines()]
    losses = [round(step["loss"], 3) for step in steps]
    if losses[-1] >= losses[0]:
        raise SystemExit(f"{name}: the loss does not fall: {losses}")
    left = f"{len(list((out / 'weights').glob('*.safetensors')))} files of weights"
    if name != "full":
        config = json.loads((out / "adapter" / "adapter_config.json").read_text(encoding="utf-8"))
        size = (out / "adapter" / "adapter_model.safetensors").stat().st_size
        left = f"adapter {size:,} bytes, r {config['r']}"
    told = next((line.strip() for line in log.splitlines() if "parameters are trained" in line), "")
    row = json.loads((out / "measurement.jsonl").read_text(encoding="utf-8").splitlines()[-1])
    measured = {key: row[key] for key in ("sec_per_iter", "mem_gb", "predicted_sec_per_iter", "predicted_mem_gb") if key in row}
    merged = sorted(path.name for path in (out / "weights").glob("*")) if (out / "weights").exists() else []
    return f"{name}: losses {losses}\n  {told}\n  {left}, {measured}, merged {merged}"


def main(folder: Path, model: str, options: list[str]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_conversations(folder)
    base, began = folder / "base", time.monotonic()
    ended(started(model, base, ["--steps", "1", "--save", *options]), base, began + LIMIT)
    print(f"base weights after {time.monotonic() - began:.0f} s", flush=True)
    weights = base / "weights"
    write_tokenizer(weights)
    data = ["--weights", str(weights), "--data", str(folder / "chat.jsonl"), "--pack", *options]
    more = [*METHODS["lora"], *data, "--steps", str(STEPS + MORE_STEPS)]
    data += ["--steps", str(STEPS)]
    running = {name: started(model, folder / name, [*method, *data]) for name, method in METHODS.items()}
    for name, process in running.items():
        ended(process, folder / name, began + LIMIT)
        print(described(name, folder / name), f"\n  after {time.monotonic() - began:.0f} s", flush=True)
    ended(started(model, folder / "lora", more), folder / "lora", began + LIMIT)
    log = (folder / "lora.log").read_text(encoding="utf-8")
    if "resum" not in log.lower():
        raise SystemExit(f"lora did not resume:\n{log[-2000:]}")
    print("resumed", described("lora", folder / "lora"), f"\n  after {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2] if sys.argv[2:] else "llama-3.2-1b", sys.argv[3:])
