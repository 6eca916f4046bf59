"""Logs say the recipe of their program: argument dumps, lines about what was applied, versions and days."""

import pytest

from meshwise.programs.train import recipe
from meshwise.runs.train.case import setup
from support.audits import read_text

MEGATRON = " iteration {}/ 9 | elapsed time per iteration (ms): 3000.0 | global batch size: 128 | lm loss: 1.1E+01 |\n"
TITAN = "step:  {}  loss: 11.5  grad_norm:  3.1  memory: 12.34GiB(25.67%)  tps: 5,321  tflops: 1,311.80  mfu: 31.50%\n"
NANOTRON = (
    "iteration: {} / 9 | elapsed_time_per_iteration_ms: 2.3K | tokens_per_sec: 456K | global_batch_size: 1.02K | lm_loss: 11 |\n"
)
TRAINER = "{{'loss': 2.5, 'learning_rate': 1e-05, 'epoch': 0.{}}}\n"
DEEPSPEED = "[2024-05-01] [INFO] epoch=0/micro_step=1/global_step={}, RunningAvgSamplesPerSec=9, CurrSamplesPerSec=9, MaxMemAllocated=9GB\n"
STEPS = {"megatron": MEGATRON, "torchtitan": TITAN, "nanotron": NANOTRON, "hf-trainer": TRAINER, "deepspeed": DEEPSPEED}
SAID = (
    ("megatron", "  attention_backend ....... AttnBackend.fused", {"attention": "cudnn"}),
    ("megatron", "  attention_backend ....... AttnBackend.auto\n  use_flash_attn ....... False", {}),
    ("megatron", "  overlap_grad_reduce ..... False\n  overlap_param_gather .... False", {"overlap": "no-dp"}),
    ("megatron", "  overlap_grad_reduce ..... True\n  overlap_param_gather .... True", {"overlap": "dp"}),
    ("megatron", "  cross_entropy_loss_fusion .... True\n  cross_entropy_fusion_impl .... te", {"loss": "kernel"}),
    ("megatron", "  cross_entropy_loss_fusion .... False\n  cross_entropy_fusion_impl .... native", {"loss": "materialised"}),
    (
        "megatron",
        "  cuda_graph_impl .... local\n  cuda_graph_scope .... [<CudaGraphScope.full_iteration: 1>]",
        {"graphs": "full"},
    ),
    ("megatron", "  moe_expert_capacity_factor .... 1.25", {"capacity": "1.25"}),
    ("megatron", "  moe_expert_capacity_factor .... None", {}),
    ("megatron", "  grad_reduce_in_bf16 ........... True", {"gradients": "bf16"}),
    ("megatron", "  deepspeed ..................... True\n  accumulate_allreduce_grads_in_fp32 .... True", {}),
    ("megatron", "megatron.core version: 0.12.1", {"release": "0.12.1"}),
    (
        "torchtitan",
        "[rank0]:[titan] 2025-02-03 10:11:12,123 - root - INFO - Async TP is enabled",
        {"release": "2025-02-03", "overlap": "tp"},
    ),
    ("torchtitan", "Compiling the loss function with torch.compile", {"loss": "compiled"}),
    ("torchtitan", "Compiling each TransformerBlock with torch.compile", {"compile": "yes"}),
    ("nanotron", "optimizer=OptimizerArgs(accumulate_grad_in_fp32=False,", {"gradients": "bf16"}),
    ("nanotron", "optimizer=OptimizerArgs(accumulate_grad_in_fp32=True,", {}),
    ("hf-trainer", "attn_implementation=flash_attention_2,\nuse_liger_kernel=True,", {"attention": "fa2", "loss": "fused"}),
    ("hf-trainer", "attn_implementation=sdpa,\nuse_liger_kernel=False,", {}),
    (
        "hf-trainer",
        'Model config LlamaConfig {\n  "hidden_size": 8,\n  "transformers_version": "4.46.2"\n}',
        {"release": "4.46.2"},
    ),
    ("deepspeed", "  zero_config ........... stage=2 contiguous_gradients=True overlap_comm=True", {"overlap": "reduce"}),
    ("deepspeed", '  zero_config ........... {"stage": 2, "overlap_comm": false}', {"overlap": "no-reduce"}),
)


@pytest.mark.parametrize(("name", "text", "expected"), SAID)
def test_a_log_says_the_recipe_of_its_program(name: str, text: str, expected: dict[str, str]) -> None:
    steps = "".join(STEPS[name].format(number) for number in range(1, 5))
    (run,) = read_text(f"{text}\n{steps}", name).runs
    told = {fact: run.text(fact) for fact in (*recipe.FACTS, "capacity", "release", "compile")}
    assert {fact: value for fact, value in told.items() if value} == expected


DUMP = """using world size: 8, data-parallel size: 8, tensor-model-parallel size: 1, pipeline-model-parallel size: 1
  attention_backend ............................... AttnBackend.{}
  num_layers ...................................... 32
  hidden_size ..................................... 4096
  num_attention_heads ............................. 32
  padded_vocab_size ............................... 32000
  seq_length ...................................... 2048
  micro_batch_size ................................ 1
"""


@pytest.mark.parametrize(("backend", "kernel"), [("unfused", "unfused"), ("flash", "fa2"), ("fused", "cudnn"), ("auto", "fa3")])
def test_the_kernel_of_a_log_is_that_of_its_prediction(backend: str, kernel: str) -> None:
    steps = "".join(MEGATRON.format(number) for number in range(1, 5))
    (run,) = read_text(DUMP.format(backend) + steps, "megatron").runs
    case = setup(run.adding(run.told("", {"chip": "h100-sxm"})))
    assert case.work.framework.kernel(case.chip.architecture) == kernel
