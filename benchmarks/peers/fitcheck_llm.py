"""fitcheck-llm (on PyPI), run as it is: the memory of fine-tuning on one device. None: the run is beyond what it models."""

from fitcheck import GpuSpec, ModelConfig, TrainingConfig, UnsupportedModelError, estimate, get_gpu  # pyright: ignore[reportMissingImports]

from meshwise.runs.train.case import Case

BASES = {"": "none", "nf4": "nf4", "nf4-single": "nf4", "int8": "int8"}
"""Formats of a frozen base, in its words; it has none for GPTQ and AWQ."""
OPTIMIZERS = {"adamw": "adamw", "adamw-fused": "adamw", "adamw-foreach": "adamw", "adamw-8bit": "adamw-8bit"}
DEVICES = {"a100-80gb-sxm": "a100-80", "a100-40gb-sxm": "a100-40", "h100-sxm": "h100", "rtx3090": "3090", "rtx4090": "4090"}
"""Names of chips in its catalogue, where they differ from ours."""
MIB = 2**20


def memory(case: Case) -> float | None:
    """Return the bytes of its estimate: weights, adapters, optimizer, gradients, activations and its overhead."""
    work, tuned, mbs = case.work, case.work.finetune, case.layout.get("mbs", 0)
    plain = tuned.method in ("full", "lora", "qlora") and work.objective.name == "sft" and not work.in_backward
    if case.cluster.devices > 1 or not mbs or not plain or case.layout.get("offload"):
        return None
    if tuned.stored not in BASES or work.optimizer not in OPTIMIZERS or case.layout.get("recompute", 0) == 1:
        return None
    training = TrainingConfig(
        precision=work.precision, quantization=BASES[tuned.stored], double_quant=tuned.stored == "nf4",
        optimizer=OPTIMIZERS[work.optimizer], batch_size=mbs, seq_len=work.seq, lora_rank=tuned.rank or None,
        lora_targets=list(tuned.targets), grad_checkpoint=case.layout.get("recompute", 0) == 2,
        flash_attn=work.framework.kernel(case.chip.architecture) != "unfused",
    )  # fmt: skip
    try:
        return estimate(_model(case), training, _device(case)).total_mib * MIB
    except (UnsupportedModelError, ValueError):  # its own refusal
        return None


def _model(case: Case) -> ModelConfig:
    decoder = case.model.decoder
    if any(op.expert for op in case.model.ops):
        raise UnsupportedModelError("experts")
    return ModelConfig(
        case.model.name, int(case.model.params), decoder.hidden, decoder.layers, decoder.heads, decoder.kv_heads, decoder.ffn,
        decoder.vocab, decoder.head_dim, decoder.tied,
    )  # fmt: skip


def _device(case: Case) -> GpuSpec:
    key = DEVICES.get(case.chip.key, case.chip.key)
    try:
        return get_gpu(key)
    except ValueError:
        return get_gpu(key, vram_mib=int(case.chip.memory / MIB))
