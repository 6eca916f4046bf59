"""Recipes in launch files: which kernels run, what communication is hidden and how gradients are summed, both ways."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import meshwise
from meshwise.catalogue.frameworks import OVERLAP_FACTS, overlap_changes, overlap_text
from meshwise.errors import UserError
from meshwise.programs.program import Setup, find_program, programs
from meshwise.programs.read.companions import settings_of
from meshwise.programs.read.flags import settings
from meshwise.programs.source import Source, Word
from meshwise.programs.train import recipe
from meshwise.runs.run import Run, Span
from support.launch_files import base, read_again
from support.launch_layouts import samples

MEGATRON = "--tensor-model-parallel-size 2 --pipeline-model-parallel-size 1"
EXPERTS = "--expert-model-parallel-size 8 --num-experts 8"
YAML, TOML, JSON = "file.yaml", "file.toml", "file.json"
SAID: tuple[tuple[str, str, str, dict[str, Any]], ...] = (
    ("megatron", "", "--attention-backend fused", {"attention": "cudnn"}),
    ("megatron", "", "--attention-backend flash", {"attention": "fa2"}),
    ("megatron", "", "--attention-backend local", {"attention": "unfused"}),
    ("megatron", "", "--attention-backend auto", {"attention": None}),
    ("megatron", "", "--use-flash-attn", {"attention": "fa2"}),
    ("megatron", "", "--flash-attention-version 3 --attention-backend flash", {"attention": "fa3"}),
    ("megatron", "", "--attention-backend fused --flash-attention-version 3", {"attention": "cudnn"}),
    ("megatron", "", "--cross-entropy-loss-fusion", {"loss": "compiled"}),
    ("megatron", "", "--cross-entropy-fusion-impl te --cross-entropy-loss-fusion", {"loss": "kernel"}),
    ("megatron", "", "--cross-entropy-fusion-impl te", {"loss": "materialised"}),
    ("megatron", "", "", {"loss": "materialised", "overlap": "no-dp", "graphs": "none", "gradients": None, "capacity": None}),
    ("megatron", "", "--overlap-grad-reduce", {"overlap": "reduce,no-gather"}),
    ("megatron", "", "--overlap-grad-reduce --overlap-param-gather --tp-comm-overlap", {"overlap": "tp,dp"}),
    ("megatron", "", EXPERTS, {"overlap": "no-ep,no-dp"}),
    ("megatron", "", f"{EXPERTS} --overlap-moe-expert-parallel-comm", {"overlap": "ep,no-dp"}),
    ("megatron", "", "--cuda-graph-impl transformer_engine --cuda-graph-scope attn", {"graphs": "partial"}),
    ("megatron", "", "--enable-cuda-graph", {"graphs": "partial"}),
    ("megatron", "", "--cuda-graph-impl local --cuda-graph-scope full_iteration", {"graphs": "full"}),
    ("megatron", "", "--cuda-graph-scope full_iteration", {"graphs": "none"}),
    ("megatron", "", "--bf16 --grad-reduce-in-bf16", {"gradients": "bf16"}),
    ("megatron", "", "--accumulate-allreduce-grads-in-fp32", {"gradients": "fp32"}),
    ("megatron", "", "--moe-expert-capacity-factor 1.25", {"capacity": 1.25}),
    ("megatron", "", "--moe-expert-capacity-factor -1", {"capacity": None}),
    ("megatron-deepspeed", "", "--deepspeed --use-flash-attn-triton", {"attention": "triton", "overlap": None}),
    ("megatron-bridge", "", "model.attention_backend=unfused", {"attention": "unfused", "overlap": None, "loss": None}),
    ("megatron-bridge", "", "ddp.overlap_grad_reduce=false ddp.grad_reduce_in_fp32=true", {"overlap": "no-reduce", "gradients": "fp32"}),
    ("megatron-bridge", "", "comm_overlap.tp_comm_overlap=true", {"overlap": "tp"}),
    ("megatron-bridge", "", "model.cuda_graph_impl=local model.cuda_graph_scope=full_iteration", {"graphs": "full"}),
    ("torchtitan", "", "--config llama3_8b --compile.enable --compile.enable_async_tensor_parallel", {"overlap": "tp"}),
    ("torchtitan", "", "--config llama3_8b --compile.no_enable --compile.enable_async_tensor_parallel", {"overlap": None}),
    ("torchtitan", "", "--config llama3_8b", {"loss": "chunked", "graphs": None}),
    ("torchtitan", "", "--config llama3_8b --loss.num_chunks 1", {"loss": "materialised"}),
    ("torchtitan", "", "--config llama3_8b --training.disable_cuda_graphs", {"graphs": "none"}),
    ("torchtitan-0.2", TOML, "[parallelism]\nenable_async_tensor_parallel = true\n[compile]\nenable = true", {"overlap": "tp"}),
    ("torchtitan-0.2", TOML, "[parallelism]\nenable_async_tensor_parallel = true", {"overlap": None}),
    ("torchtitan-0.2", TOML, '[compile]\nenable = true\ncomponents = ["model", "loss"]', {"loss": "compiled"}),
    ("torchtitan-0.2", TOML, '[compile]\nenable = true\ncomponents = ["model"]', {"loss": "materialised"}),
    ("torchtitan-0.2", TOML, '[training]\nmixed_precision_reduce = "float32"', {"gradients": "fp32", "loss": None}),
    (
        "torchtitan-0.2", TOML,
        '[parallelism]\nexpert_parallel_degree = 8\npipeline_parallel_degree = 2\npipeline_parallel_schedule = "DualPipeV"',
        {"overlap": "ep"},
    ),
    ("axolotl", YAML, "base_model: a\nflash_attention: true", {"attention": "fa2"}),
    ("axolotl", YAML, "base_model: a\nsdp_attention: true", {"attention": None}),
    ("axolotl", YAML, "base_model: a\neager_attention: true", {"attention": "unfused"}),
    ("axolotl", YAML, "base_model: a\nattn_implementation: flash_attention_3", {"attention": "fa3"}),
    ("axolotl", YAML, "base_model: a\ncut_cross_entropy: true", {"loss": "fused"}),
    ("axolotl", YAML, "base_model: a\nliger_fused_linear_cross_entropy: true\nliger_cross_entropy: false", {"loss": "fused"}),
    ("axolotl", YAML, "base_model: a\nchunked_cross_entropy: true", {"loss": "chunked"}),
    ("axolotl", YAML, "base_model: a\nflash_attn_cross_entropy: true", {"loss": "kernel"}),
    ("llama-factory", YAML, "cutoff_len: 8\nflash_attn: fa2\nenable_liger_kernel: true", {"attention": "fa2", "loss": "fused"}),
    ("llama-factory", YAML, "cutoff_len: 8\nflash_attn: disabled", {"attention": "unfused", "loss": None}),
    ("llama-factory", YAML, "cutoff_len: 8\nflash_attn: auto", {"attention": None}),
    ("trainer", "", "--attn_implementation flash_attention_2 --use_liger_kernel true", {"attention": "fa2", "loss": "fused"}),
    ("trainer", "", "--attn_implementation kernels-community/vllm-flash-attn3", {"attention": "fa3"}),
    ("trainer", "", "--attn_implementation sdpa", {"attention": None}),
    ("deepspeed", JSON, '{"zero_optimization": {"stage": 2, "overlap_comm": true}}', {"overlap": "reduce"}),
    ("deepspeed", JSON, '{"zero_optimization": {"stage": 2, "overlap_comm": false}}', {"overlap": "no-reduce"}),
    ("deepspeed", JSON, '{"zero_optimization": {"stage": 2}}', {"overlap": None, "gradients": None}),
    ("deepspeed", JSON, '{"communication_data_type": "fp32", "zero_optimization": {"stage": 2}}', {"gradients": "fp32"}),
    (
        "deepspeed", JSON,
        '{"communication_data_type": "bf16", "data_types": {"grad_accum_dtype": "fp32"}, "zero_optimization": {"stage": 2}}',
        {"gradients": "fp32"},
    ),
    ("neox", YAML, "zero_optimization:\n  stage: 1\n  overlap_comm: true", {"overlap": "reduce"}),
    ("maxtext", "", "attention=dot_product", {"attention": "unfused", "loss": None}),
    ("maxtext", "", "attention=cudnn_flash_te num_vocab_tiling=8", {"attention": "cudnn", "loss": "chunked"}),
    ("maxtext", "", "attention=autoselected capacity_factor=-1 grad_dtype=float32", dict.fromkeys(("attention", "capacity", "gradients"))),
    ("maxtext", "", "capacity_factor=1.5 grad_dtype=bfloat16", {"capacity": 1.5, "gradients": "bf16"}),
    ("nanotron", YAML, "optimizer:\n  accumulate_grad_in_fp32: true", {"gradients": None}),
    ("nanotron", YAML, "optimizer:\n  accumulate_grad_in_fp32: false", {"gradients": "bf16"}),
)  # fmt: skip
"""Program, form of the file ('' for a command), its text, and facts; None where the text leaves them to the release."""


def read(name: str, form: str, text: str) -> Run:
    program = find_program(name)
    if form:
        return program.read(settings_of(Source(form, text)))
    more = MEGATRON if name.startswith("megatron") else ""
    words = [Word(word, Span("command", 1)) for word in f"{more} {text}".split()]
    return program.read(settings(words, program.takes))


@pytest.mark.parametrize(("name", "form", "text", "expected"), SAID)
def test_a_launch_file_says_its_recipe(name: str, form: str, text: str, expected: dict[str, Any]) -> None:
    facts = read(name, form, text)
    assert {fact: facts.value(fact) for fact in expected} == expected


@pytest.mark.parametrize("text", ["", "tp", "ep,tp,no-dp", "reduce,no-gather", "none", "no-ep", "gather", "pp,dp"])
def test_words_for_overlap_mean_the_same_after_they_are_written(text: str) -> None:
    assert overlap_changes(overlap_text(overlap_changes(text))) == overlap_changes(text)


WRITTEN = {name: program for name, program in programs().items() if program.kind == "train" and program.write is not None}
STATED = (
    *({"attention": kernel} for kernel in ("fa2", "fa3", "fa4", "cudnn", "unfused", "xla")),
    *({"graphs": kind} for kind in ("none", "partial", "full")),
    *({"loss": kind} for kind in ("compiled", "kernel", "chunked", "fused")),
    {"gradients": "bf16"},
    *({"overlap": words} for words in ("tp", "ep", "no-dp", "dp", "reduce", "no-reduce")),
)


def stated(setup: Setup, facts: dict[str, Any]) -> Setup:
    """Return the setup of a plan that states facts, and assumes nothing of what is hidden besides them."""
    hidden = tuple(name for name, on in overlap_changes(facts.get("overlap", "")).items() if on)
    return replace(setup, values={**setup.values, **facts, "hides": hidden})


@pytest.mark.parametrize("facts", STATED, ids=str)
@pytest.mark.parametrize("name", sorted(WRITTEN))
def test_what_a_plan_states_is_read_back_or_refused_with_a_reason(name: str, facts: dict[str, Any]) -> None:
    """Hidden communication that a layout does not have need not be written."""
    program = WRITTEN[name]
    layouts = [base("bloom")] if name == "megatron-deepspeed" else [setup for _, setup in samples(program)]
    (fact,) = facts
    for setup in layouts:
        told = stated(setup, facts)
        refusals = list(program.refuse(told))
        if refusals:
            assert all(refusal.why for refusal in refusals)
            continue
        found, _ = read_again(program, told)
        if fact != "overlap":
            assert found.value(fact) == facts[fact], setup.values
            continue
        hidden = overlap_changes(found.text("overlap"))
        present = {"overlaps_tp": setup.whole("tp") > 1, "overlaps_experts": setup.whole("ep") > 1}
        present |= {"overlaps_reduction": setup.whole("zero", 0) > 0, "overlaps_gather": setup.whole("zero", 0) > 0}
        for part, on in overlap_changes(facts[fact]).items():
            if present[part]:
                assert hidden.get(part) == on, (part, setup.values)


def test_some_program_says_each_fact() -> None:
    """A refusal of everything would pass the test above."""
    for facts in STATED:
        said = [
            name
            for name, program in WRITTEN.items()
            for _, setup in (samples(program) if name != "megatron-deepspeed" else ())
            if not list(program.refuse(stated(setup, facts)))
        ]
        assert said, facts


@pytest.mark.parametrize("fact", ["attention=xla", "graphs=full", "overlap=pp", "gradients=bf16", "loss=fused"])
def test_a_plan_whose_recipe_a_program_cannot_write_is_refused_with_a_command_that_it_can(fact: str) -> None:
    name, _, value = fact.partition("=")
    plan = meshwise.plan("llama-3.1-8b", on="8xh100-sxm", batch="64x4096", framework="torchtitan", **{name: value})  # pyright: ignore[reportArgumentType]
    with pytest.raises(UserError, match=rf"(no setting for {name} {value}|loss).*meshwise plan ") as refused:
        meshwise.export(plan, to="torchtitan")
    assert f"--{name} {value}" not in str(refused.value)


SAME = {
    "megatron": [{}, {"attention": "unfused"}, {"attention": "fa2"}, {"loss": "kernel"}, {"overlap": "no-dp"}, {"overlap": "dp"},
                 {"graphs": "full"}, {"gradients": "bf16"}],
    "torchtitan": [{}, {"graphs": "none"}, {"gradients": "fp32"}, {"loss": "chunked"}],
    "nanotron": [{}, {"gradients": "bf16"}],
}  # fmt: skip


@pytest.mark.parametrize(("framework", "facts"), [(name, facts) for name, every in SAME.items() for facts in every], ids=str)
def test_a_plan_with_a_recipe_and_its_exported_script_have_one_prediction(
    framework: str, facts: dict[str, str], tmp_path: Path
) -> None:
    """The plan hides the reduction of gradients, which Megatron does not without a flag."""
    on, batch = "2x8xh100-sxm", "64x4096"
    fixed = {"fix": "cp=1,dp_replicate=1"} if framework == "nanotron" else {}
    plan = meshwise.plan("llama-3.1-8b", on=on, batch=batch, framework=framework, **facts, **fixed)  # pyright: ignore[reportArgumentType]
    meshwise.export(plan, to=framework, launcher="slurm").save(tmp_path)
    checked = meshwise.check(*tmp_path.glob("*"), on=on)
    assert checked.own.layout == plan.best.layout
    assert checked.own.step == pytest.approx(plan.best.step, rel=1e-9)
    assert checked.own.peak == pytest.approx(plan.best.peak, rel=1e-9)


FIXTURES = Path(__file__).parents[1] / "fixtures" / "launch"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("--attention-backend fused", "--attention-backend unfused"),
        ("--cross-entropy-loss-fusion", "--cross-entropy-loss-fusion --cross-entropy-fusion-impl te"),
        ("--overlap-grad-reduce", ""),
        ("--grad-reduce-in-bf16", ""),
        ("--bf16", "--bf16 --cuda-graph-impl local --cuda-graph-scope full_iteration"),
    ],
)
def test_a_flag_about_the_recipe_changes_what_check_predicts(before: str, after: str, tmp_path: Path) -> None:
    text = (FIXTURES / "llama3-8b-fp8.sh").read_text()
    assert before in text
    changed = tmp_path / "changed.sh"
    changed.write_text(text.replace(before, after))
    own, other = (meshwise.check(file, on="8xh100-sxm").own for file in (FIXTURES / "llama3-8b-fp8.sh", changed))
    assert (own.step, own.peak) != (other.step, other.peak)


def test_check_says_what_it_assumes_of_the_program_and_not_what_the_file_says(tmp_path: Path) -> None:
    stated = FIXTURES / "llama3-8b-fp8.sh"
    assert not any("attention" in note and "assumed" in note for note in meshwise.check(stated, on="8xh100-sxm").notes)
    silent = tmp_path / "silent.sh"
    silent.write_text(stated.read_text().replace("--attention-backend fused", ""))
    (note,) = [note for note in meshwise.check(silent, on="8xh100-sxm").notes if "assumed" in note]
    assert note.startswith("Megatron-LM ")
    assert "fa3 attention" in note
    assert "gradients" not in note


def test_an_answer_states_the_release_of_a_file() -> None:
    old, new = (
        meshwise.check(FIXTURES / "titan-llama3-70b.toml", on="32x8xh100-sxm", **more)
        for more in ({"set": ["release=2024-12"]}, {})
    )
    assert old.own.step > new.own.step
    assert any("fa2 attention" in note for note in old.notes)


def test_every_fact_of_overlap_has_a_word() -> None:
    assert set(recipe.HIDDEN) == {name for names in OVERLAP_FACTS.values() for name in names}
