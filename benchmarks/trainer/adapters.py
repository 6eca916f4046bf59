"""Count the adapters of peft, the packed bytes of bitsandbytes and the state bytes of DeepSpeed's estimator into tests/fixtures/finetune.

python benchmarks/trainer/adapters.py    with torch, transformers, peft, bitsandbytes and deepspeed installed; no weights are loaded
"""

import csv
import importlib.metadata
import json
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MODELS = ROOT / "src/meshwise/data/models"
OUT = ROOT / "tests/fixtures/finetune"
METHODS = (
    ("llama-3.2-1b", "lora:16"),
    ("llama-3.1-8b", "lora:16:q_proj,v_proj"),
    ("llama-3.1-8b", "dora:8"),
    ("llama-3-70b", "lora:64"),
    ("qwen2.5-7b", "lora:32:q_proj,k_proj,v_proj,o_proj"),
    ("qwen3-0.6b", "dora:16:attention"),
    ("qwen3-30b-a3b", "lora:16"),
    ("qwen3-next-80b-a3b", "lora:8"),
    ("mixtral-8x7b", "lora:8"),
    ("gemma-3-1b", "lora:4"),
    ("gemma-2-9b", "lora:16:mlp"),
    ("phi-3-mini", "lora:16"),
    ("phi-2", "lora:16:q_proj,fc1,fc2"),
    ("gpt2", "lora:8"),
    ("gpt2-xl", "lora:8:c_attn"),
    ("bloom-560m", "lora:16"),
    ("falcon-7b", "lora:64:query_key_value"),
    ("pythia-1.4b", "dora:4"),
    ("opt-1.3b", "lora:16:q_proj,v_proj"),
    ("starcoder2-3b", "lora:16"),
    ("mpt-7b", "lora:8:Wqkv"),
    ("mamba2-130m", "lora:8:in_proj"),
    ("deepseek-v2-lite", "lora:16"),
    ("falcon-h1-7b", "lora:8:q_proj,in_proj,gate_proj"),
)
GROUPS = {"attention": ["q_proj", "k_proj", "v_proj", "o_proj"], "mlp": ["gate_proj", "up_proj", "down_proj"]}
SHAPES = ((64, 64), (768, 768), (2304, 768), (4096, 4096), (1024, 4096), (14336, 4096), (100, 70), (8, 1), (33, 65), (5120, 1))


def adapters() -> list[dict[str, object]]:
    """Return the trained parameters that peft reports for each method."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoConfig, AutoModelForCausalLM

    rows: list[dict[str, object]] = []
    for name, text in METHODS:
        method, rank, *targets = text.split(":")
        listed = GROUPS.get(targets[0], targets[0].split(",")) if targets else "all-linear"
        values = json.loads((MODELS / f"{name}.json").read_text())
        values.pop("quantization_config", None)
        config = AutoConfig.for_model(**values)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
            adapted = get_peft_model(model, LoraConfig(r=int(rank), target_modules=listed, use_dora=method == "dora"))
        trained, _ = adapted.get_nb_trainable_parameters()
        rows.append({"model": name, "finetune": text, "parameters": trained})
        print(rows[-1], flush=True)
    return rows


def packed() -> list[dict[str, object]]:
    """Return the bytes of matrices that bitsandbytes stores in nf4 with double quantization, those of its tables included."""
    import torch
    from bitsandbytes.functional import quantize_4bit  # pyright: ignore[reportMissingImports]

    rows: list[dict[str, object]] = []
    for n, k in SHAPES:
        weight, state = quantize_4bit(torch.randn(n, k), blocksize=64, compress_statistics=True, quant_type="nf4")
        held = (weight, state.absmax, state.code, state.offset, state.state2.absmax, state.state2.code)
        rows.append({"rows": n, "columns": k, "bytes": sum(one.numel() * one.element_size() for one in held)})
    return rows


def estimates() -> list[dict[str, object]]:
    """Return the bytes of model states by DeepSpeed's estimators, of a device and of a node's host without the buffers that it adds."""
    from deepspeed.runtime.zero.stage3 import estimate_zero3_model_states_mem_needs as three  # pyright: ignore[reportMissingImports]
    from deepspeed.runtime.zero.stage_1_and_2 import estimate_zero2_model_states_mem_needs as two  # pyright: ignore[reportMissingImports]

    rows: list[dict[str, object]] = []
    for total in (1_235_814_400, 8_030_261_248, 70_553_706_496):
        for devices in (1, 4, 8):
            for offload in ("none", "optimizer"):
                host, device = two(total, devices, 1, offload != "none", additional_buffer_factor=1)
                rows.append(
                    {"parameters": total, "devices": devices, "zero": 2, "offload": offload, "device": device, "host": host}
                )
            for offload in ("none", "optimizer", "parameters"):
                host, device, _ = three(total, 0, devices, 1, offload != "none", offload == "parameters", True, 1)
                rows.append(
                    {"parameters": total, "devices": devices, "zero": 3, "offload": offload, "device": device, "host": host}
                )
    return rows


def main() -> None:
    OUT.mkdir(parents=True, exist_ok=True)
    for name, rows in (("peft", adapters), ("bitsandbytes", packed), ("deepspeed", estimates)):
        table = rows()
        with (OUT / f"{name}.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, table[0], lineterminator="\n")
            writer.writeheader()
            writer.writerows(table)
    names = ("torch", "transformers", "peft", "bitsandbytes", "deepspeed")
    versions = {name: importlib.metadata.version(name) for name in names}
    (OUT / "versions.json").write_text(json.dumps(versions, indent=2) + "\n")


if __name__ == "__main__":
    main()
