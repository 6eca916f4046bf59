"""The trainer's speed on one GPU, and that of transformers' Llama: `python benchmarks/trainer/train.py [CASE...]` on the GPU machine.

Each case runs in its own process, so that none reuses the memory or the compiled code of another. Needs torch and triton;
the hf cases need transformers.
"""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
PEAK = 989e12
"""Dense bf16 FLOP/s of an H100 or H200 by the datasheet."""
STEPS, COUNTED = 24, 12

SMALL = {
    "model_type": "llama", "hidden_size": 768, "intermediate_size": 2048, "num_hidden_layers": 12, "num_attention_heads": 12,
    "num_key_value_heads": 12, "vocab_size": 50257, "tie_word_embeddings": True, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
}  # fmt: skip


OLMOE = {
    "model_type": "olmoe", "hidden_size": 2048, "intermediate_size": 1024, "num_hidden_layers": 16, "num_attention_heads": 16,
    "num_key_value_heads": 16, "vocab_size": 50304, "num_experts": 64, "num_experts_per_tok": 8, "norm_topk_prob": False,
    "rope_theta": 10000.0, "rms_norm_eps": 1e-5, "tie_word_embeddings": False, "router_aux_loss_coef": 0.01,
}  # fmt: skip
"""allenai/OLMoE-1B-7B-0924."""


def preset(name: str) -> dict[str, Any]:
    values = json.loads((ROOT / f"src/meshwise/data/models/{name}.json").read_text(encoding="utf-8"))
    return {key: value for key, value in values.items() if key != "meshwise"}


CASES: dict[str, tuple[str, int, int, dict[str, Any]]] = {
    "125m": ("125m", 8, 2048, {}),
    "125m-no-graph": ("125m", 8, 2048, {"graph": False}),
    "1b": ("llama-3.2-1b", 8, 2048, {}),
    "1b-no-graph": ("llama-3.2-1b", 8, 2048, {"graph": False}),
    "1b-eager": ("llama-3.2-1b", 8, 2048, {"compile": False, "graph": False}),
    "8b": ("llama-3-8b", 4, 2048, {}),
    "8b-fp8": ("llama-3-8b", 4, 2048, {"precision": "fp8"}),
    "8b-fp8-exact": ("llama-3-8b", 4, 2048, {"precision": "fp8", "exact": True}),
    "8b-fp8-row": ("llama-3-8b", 4, 2048, {"precision": "fp8-row", "exact": True}),
    "1b-fp8": ("llama-3.2-1b", 8, 2048, {"precision": "fp8"}),
    "8b-full": ("llama-3-8b", 8, 2048, {"recompute": "full"}),
    "ttt-16x128": ("ttt-linear-125m", 16, 128, {}),
    "ttt-16x512": ("ttt-linear-125m", 16, 512, {}),
    "ttt-8x2048": ("ttt-linear-125m", 8, 2048, {}),
    "ttt-mlp-16x512": ("ttt-mlp-125m", 16, 512, {}),
    "ttt-1.3b": ("ttt-linear-1.3b", 8, 2048, {}),
    "ttt-1.3b-llama": ("ttt-linear-1.3b as llama", 8, 2048, {}),
    "qwen3-1.7b": ("qwen3-1.7b", 8, 2048, {}),
    "qwen3-0.6b": ("qwen3-0.6b", 4, 2048, {}),
    "qwen3-0.6b-llama": ("qwen3-0.6b as llama", 4, 2048, {}),
    "gemma-2-2b": ("gemma-2-2b", 4, 2048, {}),
    "gemma-2-2b-llama": ("gemma-2-2b as llama", 4, 2048, {}),
    "gemma-3-1b": ("gemma-3-1b", 4, 2048, {}),
    "bloom-560m": ("bloom-560m", 8, 2048, {}),
    "bloom-560m-llama": ("bloom-560m as llama", 8, 2048, {}),
    "gpt2": ("gpt2", 8, 1024, {}),
    "olmoe-1b-7b": ("olmoe-1b-7b", 4, 2048, {}),
    "hf-1b": ("llama-3.2-1b", 8, 2048, {"hf": True}),
    "hf-125m": ("125m", 8, 2048, {"hf": True}),
    "hf-125m-compiled": ("125m", 8, 2048, {"hf": True, "compile": True}),
}


def config(name: str) -> dict[str, Any]:
    """Return the config of a preset; with 'as llama', of a Llama of the same sizes and the same FLOPs in its products."""
    own = {"125m": SMALL, "olmoe-1b-7b": OLMOE}
    values = own[name] if name in own else preset(name.partition(" ")[0])
    if not name.endswith("as llama"):
        return values
    if values["model_type"] != "bloom":
        return values | {"model_type": "llama", "hidden_act": "silu", "rope_scaling": None}
    hidden = values["hidden_size"]
    return {
        "model_type": "llama", "hidden_size": hidden, "num_hidden_layers": values["n_layer"], "num_attention_heads": values["n_head"],
        "intermediate_size": round(8 * hidden / 3 / 16) * 16, "vocab_size": values["vocab_size"], "tie_word_embeddings": True,
    }  # fmt: skip


def ready(name: str, batch: int, seq: int, options: dict[str, Any]) -> tuple[Any, Any]:
    """Return the settings of a case and its Stepper."""
    import torch
    import torch.distributed as dist

    from meshwise.workers.trainer.contract.finetune.method import FinetuneMethod
    from meshwise.workers.trainer.contract.settings import Layout, Settings
    from meshwise.workers.trainer.gradients import trained_parameters
    from meshwise.workers.trainer.ops import attention
    from meshwise.workers.trainer.optimizer import make_optimizer
    from meshwise.workers.trainer.parallel import Ranks
    from meshwise.workers.trainer.passes import Passes
    from meshwise.workers.trainer.step import Stepper

    flags: dict[str, Any] = {"compile": True, "graph": True} | {
        key: value for key, value in options.items() if key in ("compile", "graph", "precision", "moments")
    }
    if "tiles" in options:
        attention.WIDE_TILES = options["tiles"]
    if options.get("precision", "").startswith("fp8"):
        from meshwise.workers.trainer.ops import fp8

        fp8.FAST_BACKWARD = "exact" not in options
        fp8.BACKWARD |= {False: torch.float8_e4m3fn} if "e4m3" in options else {}
    layout = Layout(mbs=int(options.get("mbs", batch)), recompute=options.get("recompute", "none"))
    finetune = options.get("finetune", {})
    flags |= {"lr": 3e-4, "finetune": FinetuneMethod(**(finetune | {"targets": tuple(finetune.get("targets", ()))}))}
    settings = Settings(name=name, model=config(name), layout=layout, batch=batch, seq=seq, steps=STEPS, device="cuda", **flags)
    if not dist.is_initialized():
        dist.init_process_group("nccl", init_method=f"tcp://127.0.0.1:{29500 + os.getpid() % 500}", rank=0, world_size=1)
    ranks = Ranks.of(layout, "cuda")
    passes = Passes(settings, ranks, torch.device("cuda"))
    if options.get("squares") is False:
        parts: list[Any] = [part for model in passes.models for part in model.modules() if hasattr(part, "squares")]
        for part in parts:
            part.squares = None
    parameters = trained_parameters(passes.models)
    return settings, Stepper(settings, ranks, passes, make_optimizer(settings, parameters), parameters)


def ours(name: str, batch: int, seq: int, options: dict[str, Any]) -> dict[str, Any]:
    """Time the steps of the trainer's own loop, without its printing."""
    import torch

    from meshwise.workers.trainer.contract.models.registry import sizes_of
    from meshwise.workers.trainer.gradients import named_parameters

    before = torch.cuda.memory_allocated() / 2**30
    settings, stepper = ready(name, batch, seq, options)
    start, held = torch.cuda.max_memory_allocated() / 2**30, torch.cuda.memory_allocated() / 2**30
    torch.cuda.reset_peak_memory_stats()
    dice = torch.Generator().manual_seed(0)
    data = [torch.randint(0, 256, (2, batch, seq), generator=dice).pin_memory() for _ in range(4)]
    launched: list[Any] = []
    host = first = 0.0
    began = time.perf_counter()
    steps = int(options.get("steps", STEPS))
    counted = max(2, min(COUNTED, steps // 2))
    for step in range(steps):
        if step == steps - counted:
            torch.cuda.synchronize()
            host = time.perf_counter()
        launched.append(stepper.launch(step, data[step % 4][0], data[step % 4][1]))
        if step == 0:
            torch.cuda.synchronize()
            first = time.perf_counter() - began
    host = time.perf_counter() - host
    torch.cuda.synchronize()
    seconds = sorted(launched[i].end.since(launched[i - 1].end) for i in range(steps - counted + 1, steps))
    count = sum(p.numel() for _, p in named_parameters(stepper.passes.models))
    unused = sum(p.numel() for name, p in stepper.parameters if ".experts." in name)
    share = settings.model.get("num_experts_per_tok", 1) / sizes_of(settings.model).experts if unused else 1.0
    row = {
        "params": count,
        "trained": sum(p.numel() for _, p in stepper.parameters),
        "memory_at_start": start,
        "memory_held": held,
        "active": count - unused * (1 - share),
        "seconds": seconds[len(seconds) // 2],
        "first": first,
        "host": host / counted,
        "memory": torch.cuda.max_memory_allocated() / 2**30,
        "loss": [round(float(one.numbers[0]), 4) for one in launched[:: max(1, steps // 6)]],
        "imbalance": round(float(launched[-1].numbers[2]), 2),
        "before": round(before, 2),
    }
    if options.get("profile"):
        row["parts"] = profiled(lambda: stepper.launch(steps - 1, data[0][0], data[0][1]))
    return row


def profiled(run: Any) -> dict[str, float]:
    """Return milliseconds of all kernels of a step together, and of the longest by name."""
    import torch

    run()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as seen:
        run()
        torch.cuda.synchronize()
    found: dict[str, float] = {}
    kernels = seen.key_averages()
    for row in kernels:  # kernels of templates differ only late in their names
        found[row.key[:90]] = found.get(row.key[:90], 0.0) + row.self_device_time_total / 1e3
    longest = {name: round(found[name], 2) for name in sorted(found, key=lambda name: -found[name])[:40]}
    return {f"all {sum(row.count for row in kernels):,} kernels": round(sum(found.values()), 2)} | longest


def hugging_face(name: str, batch: int, seq: int, options: dict[str, Any]) -> dict[str, Any]:
    """Time transformers' Llama with fused AdamW under autocast, as its users train it."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig

    kept = {key: value for key, value in config(name).items() if key not in ("architectures", "torch_dtype", "dtype")}
    with torch.device("cuda"):
        model: Any = AutoModelForCausalLM.from_config(LlamaConfig(**kept), attn_implementation="sdpa")
    if options.get("compile"):
        model.compile()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
    tokens = torch.randint(0, 256, (batch, seq + 1), device="cuda")
    events: list[Any] = []
    began = time.perf_counter()
    first = 0.0
    for step in range(STEPS):
        with torch.autocast("cuda", torch.bfloat16):
            loss = model(input_ids=tokens[:, :-1], labels=tokens[:, :-1]).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        events.append(torch.cuda.Event(enable_timing=True))
        events[-1].record()
        if step == 0:
            torch.cuda.synchronize()
            first = time.perf_counter() - began
    torch.cuda.synchronize()
    seconds = sorted(events[i - 1].elapsed_time(events[i]) / 1e3 for i in range(STEPS - COUNTED, STEPS))
    count = sum(p.numel() for p in model.parameters())
    return {
        "params": count,
        "seconds": seconds[len(seconds) // 2],
        "first": first,
        "memory": torch.cuda.max_memory_allocated() / 2**30,
    }


def in_one_process(cases: dict[str, Any]) -> None:
    """Time cases one after the other, and append each to $OUT/cases.jsonl: starting a process takes as long as a case does."""
    import gc

    import torch

    for label, (name, batch, seq, options) in cases.items():
        began = time.perf_counter()
        row: dict[str, Any] = {"case": label, "tokens": batch * seq}
        try:
            row |= ours(name, batch, seq, options)
        except Exception as error:  # the next case may still work
            row["failed"] = f"{type(error).__name__}: {str(error)[:1500]}"
        row["took"] = round(time.perf_counter() - began, 1)
        with (Path(os.environ.get("OUT", ".")) / "cases.jsonl").open("a", encoding="utf-8") as file:
            file.write(json.dumps(row) + "\n")
        rate = f"{row['tokens'] / row['seconds']:,.0f} tok/s, {row['memory']:.2f} GiB" if "seconds" in row else row["failed"]
        print(f"{label}: {rate} ({row['took']} s) {row.get('loss', '')}", flush=True)
        torch._dynamo.reset()
        gc.collect()
        torch.cuda.empty_cache()


def main() -> None:
    if len(sys.argv) > 2 and sys.argv[1] == "--many":
        in_one_process(json.loads(sys.argv[2]))
        return
    if len(sys.argv) > 2 and sys.argv[1] == "--one":
        name, batch, seq, options = json.loads(sys.argv[2])
        result = (hugging_face if options.get("hf") else ours)(name, batch, seq, options)
        print("RESULT " + json.dumps(result), flush=True)
        return
    out = Path(os.environ.get("OUT", "."))
    print(f"{'case':<18}{'tok/s':>10}{'MFU 6N':>8}{'GiB':>7}{'step s':>8}{'host s':>8}{'first s':>8}")
    for name in sys.argv[1:] or CASES:
        label, _, extra = name.partition(":")
        model, batch, seq, options = CASES[label]
        options = options | json.loads(extra or "{}")
        batch, seq = options.pop("batch", batch), options.pop("seq", seq)
        command = [sys.executable, __file__, "--one", json.dumps([model, batch, seq, options])]
        done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
        lines = [line for line in done.stdout.splitlines() if line.startswith("RESULT ")]
        if not lines:
            (out / f"{label}.log").write_text(done.stdout + done.stderr, encoding="utf-8")
            print(f"{name:<18} failed: {(done.stderr.strip().splitlines() or ['?'])[-1][:300]}", flush=True)
            continue
        row = json.loads(lines[-1].removeprefix("RESULT "))
        rate = batch * seq / row["seconds"]
        print(
            f"{name:<18}{rate:>10,.0f}{6 * row['params'] * rate / PEAK:>8.1%}{row['memory']:>7.1f}{row['seconds']:>8.4f}"
            f"{row.get('host', 0):>8.4f}{row['first']:>8.1f}  {row.get('loss', '')}",
            flush=True,
        )
        for part, milliseconds in row.get("parts", {}).items():
            print(f"    {milliseconds:>8.2f} ms  {part}")


if __name__ == "__main__":
    main()
