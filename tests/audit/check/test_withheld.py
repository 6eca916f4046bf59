"""No verdict from what was not read: unknown inputs, branches, misspelt keys and files that were not given withhold it."""

from typing import Any

import pytest

from meshwise.audit.check.ask import CheckAsk
from meshwise.audit.check.judge import judge
from meshwise.audit.check.verdict import Verdict
from meshwise.programs.read.files import read_sources
from meshwise.programs.source import Source

GPT = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --micro-batch-size 1 "
    "--global-batch-size 8 --seq-length 4096 --max-position-embeddings 4096 --vocab-size 32000 "
)
QWEN = (
    "torchrun --nproc_per_node 8 t.py --model_name_or_path Qwen/Qwen2.5-7B --per_device_train_batch_size 1 --max_steps 10 --bf16 "
    "--block_size 4096 "
)


def verdict(text: str, *answers: str, on: str = "8xh100-sxm", file: str = "t.sh") -> Verdict:
    ask = CheckAsk(on=on, set=answers)
    return judge(read_sources([Source(file, text)], ask.answers), ask)


@pytest.mark.parametrize(
    ("text", "on", "reason"),
    [
        ("vllm serve meta-llama/Llama-3.1-8B --tensor-parallel-size $TP", "8xh200", "tp: $TP is not known"),
        ("python -m sglang.launch_server --model-path deepseek-ai/DeepSeek-R1 --tp $TP", "8xh200", "tp: $TP is not known"),
        ('if [ $1 = fp16 ]; then P="--fp16"; else P="--bf16"; fi\n' + GPT + "$P", "8xh100-sxm", "fp16 or bf16, by $1 (t.sh:1)"),
        ('A="--bf16"; if [ $1 = 8 ]; then A="$A --tensor-model-parallel-size 8"; fi\n' + GPT + "$A", "8xh100-sxm", "8 or 1, by $1"),
        (GPT + "--bf16 --tensor-model-paralel-size 8", "8xh100-sxm", "did you mean --tensor-model-parallel-size?"),
        (GPT + "--bf16 --hybrid-layer-pattern 'M*M*'", "8xh100-sxm", "it sets the kinds of its layers"),
        (GPT + "--bf16 --exp-avg-dtype bf16", "8xh100-sxm", "it needs less with --exp-avg-dtype"),
        ("vllm serve meta-llama/Llama-3.1-8B --hf-overrides '{\"rope_theta\": 1}'", "8xh200", "it sets the model's configuration"),
        ("tune run --nproc_per_node 8 full_finetune_distributed --config llama3/8B_full", "8xh200", "which was not given"),
        (QWEN + "--optim apollo_adamw", "8xh200", "'apollo_adamw' is not an optimizer whose memory is counted"),
        (QWEN + "--optim adamw_torch_4bit", "8xh200", "'adamw_torch_4bit' is not an optimizer whose memory is counted"),
        (QWEN + "--fsdp full_shard --fsdp_config fsdp.json", "8xh200", "recompute: in fsdp.json, which is not read"),
        (GPT + "--bf16 --yaml-cfg gpt.yaml", "8xh100-sxm", "in gpt.yaml, which was not given"),
        (
            "vllm serve deepseek-ai/DeepSeek-R1 -dp 8 -ep --enable-eplb --eplb-config '{\"num_redundant_experts\": 32}'", "8xh200",
            "it sets how many experts are stored twice",
        ),
        ("vllm serve deepseek-ai/DeepSeek-R1 -tp 8 -pcp 2", "16xh200", "it sets how many devices share a prompt"),
        ("llama-server -m Qwen3-32B-Q4_K_M.gguf -ngl 99 -nkvo -c 8192", "1xh200", "it sets where the KV cache lies"),
        ("llama-server -m Qwen3-30B-A3B-Q4_K_M.gguf -ngl 99 --cpu-moe -c 8192", "1xh200", "exps=CPU in host memory is not predicted"),
        ("trtllm-serve nvidia/DeepSeek-R1-0528-FP4 --tp_size 8", "8xh100-sxm", "tensorrt-llm does not run nvfp4 on H100 SXM"),
    ],
)  # fmt: skip
def test_there_is_no_verdict_while_an_input_is_unknown_or_unread(text: str, on: str, reason: str) -> None:
    found = verdict(text, on=on)
    assert found.fits is None
    assert found.code == 0
    assert reason in "; ".join(found.unknown)


def test_an_answer_gives_the_verdict_that_was_withheld() -> None:
    text = "vllm serve meta-llama/Llama-3.1-8B --tensor-parallel-size $TP"
    assert verdict(text, "TP=4", on="8xh200").fits is True
    script = 'if [ $1 = fp16 ]; then P="--fp16"; else P="--bf16"; fi\n' + GPT + "$P --use-distributed-optimizer"
    assert verdict(script, "1=other").facts.value("precision") == "bf16"
    assert verdict(script, "1=other").fits is not None


def test_a_key_that_saves_memory_leaves_the_verdict_that_it_fits() -> None:
    text = (
        GPT
        + "--bf16 --use-distributed-optimizer --recompute-granularity full --recompute-method uniform --recompute-num-layers 1"
    )
    assert verdict(text).fits is True
    assert verdict(text + " --exp-avg-dtype bf16").fits is True


def test_keys_that_are_not_read_are_listed_those_that_change_memory_first() -> None:
    found = verdict(GPT + "--bf16 --lr 1e-4 --ddp-bucket-size 3 --no-masked-softmax-fusion --save x").unread
    assert [(one.key, one.changes) for one in found] == [
        ("--ddp-bucket-size", "memory"), ("--no-masked-softmax-fusion", "speed"), ("--lr", "nothing"), ("--save", "nothing"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("file", "text", "key", "like"),
    [
        ("t.toml", '[model]\nname="llama3"\nflavor="8B"\n[training]\nseq_len=8192\n[job]\nx=1\n[paralelism]\ntensor_parallel_degree=8\n',
         "paralelism.tensor_parallel_degree",
         "parallelism.tensor_parallel_degree"),
        ("a.yaml", "distributed_type: FSDP\nnum_machines: 1\nnum_processes: 8\nmixed_precision: bf16\nfsdp_config:\n  fsdp_verzion: 2\n",
         "fsdp_config.fsdp_verzion", "fsdp_config.fsdp_version"),
        ("d.json", '{"zero_optimisation": {"stage": 3}, "train_micro_batch_size_per_gpu": 1, "bf16": {"enabled": true}}',
         "zero_optimisation.stage", "zero_optimization.stage"),
    ],
)  # fmt: skip
def test_misspelt_keys_of_files_have_a_suggestion(file: str, text: str, key: str, like: str) -> None:
    found = {one.key: one for one in verdict(text, file=file).unread}
    assert found[key].like == like
    assert found[key].withholds


def test_one_line_names_the_model_that_was_built_from_flags() -> None:
    text = (
        GPT.replace("32 --hidden-size 4096 --num-attention-heads 32", "96 --hidden-size 12288 --num-attention-heads 96")
        + "--bf16"
    )
    assert verdict(text.replace("32000", "51200")).model.startswith("175B parameters: 96 layers of width 12,288")
    assert verdict(text.replace("32000", "51200")).model.endswith("-175b")  # the shape of a known one


def test_degrees_and_sizes_of_zero_cannot_start() -> None:
    found = verdict(GPT.replace("--num-attention-heads 32", "--num-attention-heads 0") + "--bf16 --tensor-model-parallel-size 0")
    assert [one.message for one in found.findings if one.severity == "stops"] == [
        "--tensor-model-parallel-size is 0: expected 1 or more", "--num-attention-heads is 0: expected 1 or more",
    ]  # fmt: skip
    server = verdict("vllm serve meta-llama/Llama-3.1-8B --tensor-parallel-size 0", on="8xh200")
    assert server.line.startswith("cannot start: --tensor-parallel-size is 0")


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ("--bf16 --pipeline-model-parallel-size 2 --num-virtual-stages-per-pipeline-rank 2 --num-layers-per-virtual-pipeline-stage 8",
         "exclude each other"),
        ("--bf16 --deepspeed --zero-stage 0 --no-pipeline-parallel --pipeline-model-parallel-size 2", "--no-pipeline-parallel and pp 2"),
        ("--bf16 --step-batch-size-schedule '0:8 100:16'", "--step-batch-size-schedule and --global-batch-size"),
    ],
)  # fmt: skip
def test_flags_that_exclude_each_other_cannot_start(flags: str, words: str) -> None:
    assert any(words in one.message for one in verdict(GPT + flags).findings if one.severity == "stops")


def test_a_fix_leaves_no_flags_that_exclude_each_other() -> None:
    text = GPT.replace("--num-layers 32 --hidden-size 4096", "--num-layers 80 --hidden-size 8192").replace("8 --seq", "512 --seq")
    text = text.replace("--nproc_per_node 8", "--nnodes 8 --nproc_per_node 8").replace(
        "--num-attention-heads 32", "--num-attention-heads 64"
    )
    flags = "--bf16 --tensor-model-parallel-size 8 --pipeline-model-parallel-size 4 --num-layers-per-virtual-pipeline-stage 20 "
    found = verdict(text + flags + "--sequence-parallel --use-distributed-optimizer", on="8x8xh100-sxm")
    patched = found.patched["t.sh"]
    assert "--num-layers-per-virtual-pipeline-stage" not in patched
    assert verdict(patched, on="8x8xh100-sxm").starts


def test_the_layout_that_torchtitan_rounds_up_can_start() -> None:
    text = '[model]\nname="llama3"\nflavor="405B"\n[training]\nlocal_batch_size=16\nglobal_batch_size=512\nseq_len=8192\n[parallelism]\n'
    text += 'tensor_parallel_degree=8\npipeline_parallel_degree=16\npipeline_parallel_schedule="Interleaved1F1B"\n'
    found = verdict(text + "pipeline_parallel_layers_per_stage=1\n", on="64x8xh100-sxm", file="t.toml")
    assert found.facts.value("vpp") == 8
    assert not [one for one in found.findings if "does not divide 126 layers" in one.message]


def test_a_chip_that_the_file_names_is_used_and_idle_devices_are_told() -> None:
    task = 'resources: {accelerators: "H100:8"}\nrun: |\n  vllm serve meta-llama/Llama-3.1-8B --tensor-parallel-size 8\n'
    found = verdict(task, on="", file="s.yaml")
    assert found.fits is True
    assert any("that the file names" in note for note in found.notes)
    idle = verdict(GPT + "--bf16 --use-distributed-optimizer", on="4x8xh100-sxm")
    assert "the file starts 8 of the 32 devices of 4x8xh100-sxm: the others are idle" in idle.notes


def served(text: str, on: str) -> Any:
    return verdict(text, on=on).own


def test_a_server_is_judged_at_the_load_it_admits_and_says_its_cache() -> None:
    own = served("vllm serve meta-llama/Llama-3.3-70B-Instruct --tensor-parallel-size 4 --max-model-len 8192", "4xh100-sxm")
    assert own.users > 100
    assert own.full_requests == own.cache_tokens // own.context
    assert own.context == 8192


def test_a_server_that_does_not_fit_says_what_would() -> None:
    own = served("vllm serve meta-llama/Llama-3.3-70B-Instruct --tensor-parallel-size 2", "2xh100-sxm")
    assert not own.fits
    assert own.context == 131_072
    assert [text.rpartition(" ")[0] for text in own.remedies][:1] == ["a context of"]
    assert "weights in fp8" in own.remedies
    assert own.remedies[-1] == "tp 4, on 4 devices"


def test_ranks_that_share_experts_are_shown_as_the_file_writes_them() -> None:
    found = verdict("vllm serve deepseek-ai/DeepSeek-V2-Lite --data-parallel-size 4 --enable-expert-parallel", on="4xh100-sxm")
    assert [found.facts.value(name) for name in ("tp", "dp", "ep")] == [1, 4, 4]


def test_a_file_of_tokens_shows_no_secret() -> None:
    found = verdict("HF_TOKEN=hf_secret vllm serve meta-llama/Llama-3.1-8B", on="8xh200")
    assert "hf_secret" not in str(found.to_json())


def test_several_recomputed_modules_keep_less_than_each_of_them() -> None:
    flags = GPT + "--bf16 --use-distributed-optimizer --recompute-granularity selective --recompute-modules "
    both, mlp, norms = (verdict(flags + names).own for names in ("mlp layernorm", "mlp", "layernorm"))
    assert both is not None
    assert mlp is not None
    assert norms is not None
    assert both.peak < min(mlp.peak, norms.peak)
    assert both.step > max(mlp.step, norms.step)


def test_latent_attention_needs_no_experts() -> None:
    found = verdict(GPT + "--bf16 --multi-latent-attention --kv-lora-rank 512 --q-lora-rank 1536")
    assert found.own is not None


@pytest.mark.parametrize("name", ["RedHatAI/Llama-3.3-70B-Instruct-FP8-dynamic", "Qwen/Qwen2.5-72B-Instruct-GPTQ-Int4"])
def test_weights_have_the_format_of_the_checkpoints_name(name: str) -> None:
    assert verdict(f"vllm serve {name} --max-model-len 4096 --max-num-seqs 4", on="1xh200").fits is True


def test_a_quantization_behind_the_repository_is_read() -> None:
    assert verdict("llama-server -hf unsloth/Qwen3-32B-GGUF:Q4_K_M -c 8192 -np 1", on="1xh100-sxm").fits is True
    assert verdict("llama-server -hf unsloth/Qwen3-32B-GGUF:BF16 -ngl 99 -c 8192 -np 1", on="1xrtx-4090").fits is False


def test_a_word_that_is_not_listed_is_unknown_and_stops_nothing() -> None:
    found = verdict(QWEN + "--optim lion_8bit")
    assert not found.findings
    assert found.facts.value("optimizer") is None
    assert "--max_steps: 'ten' is not a whole number" in str(verdict(QWEN + "--max_steps ten").findings)


def test_rounds_of_pytorchs_interleaving_need_not_be_as_long_as_the_pipeline() -> None:
    flags = (
        "--parallelism.pipeline_parallel_degree 4 --parallelism.pipeline_parallel_schedule Interleaved1F1B --training.steps 9 "
    )
    start = "torchrun --nproc_per_node 8 -m torchtitan.train --module llama3 --config llama3_8b --training.seq_len 4096 " + flags
    few = verdict(start + "--training.local_batch_size 2 --training.global_batch_size 4")
    assert not [finding for finding in few.findings if finding.severity == "stops"]
    assert "interleaving needs" in str(verdict(start + "--training.local_batch_size 9 --training.global_batch_size 18").findings)
