"""Bytes on the fullest device, against the papers that count them."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings

from meshwise.catalogue.calibrations import Calibration
from meshwise.catalogue.frameworks import LOSSES, find_framework
from meshwise.cost.axes import OFFLOAD, RECOMPUTE
from meshwise.cost.finetune import parse
from meshwise.cost.layout import Layouts
from meshwise.cost.parts import TRAIN_KINDS
from meshwise.cost.train.activations import GATHERED_ACTIVATIONS, stored_per_token
from meshwise.cost.train.memory import MOMENTS, host_bytes
from meshwise.cost.train.question import Question
from meshwise.cost.train.step import evaluate, moments
from support.every import check_every
from support.train_questions import cost, faster, question, questions_with_layouts, sums_to

MEGATRON = find_framework("megatron")
PLAIN = replace(MEGATRON, attention="unfused", dropout=True)
"""Megatron as Korthikanti et al. had it in 2022."""
SIZES = [("korthikanti-22b", 2048), ("korthikanti-175b", 2048), ("gpt3-13b", 1024)]


def kept(q: Question, **axes: int) -> float:
    """Activation bytes that one layer keeps for the backward pass, without what the layer at work needs meanwhile."""
    a = Layouts.of(**axes).as_floats()
    return axes.get("mbs", 1) * q.work.seq * stored_per_token(q.model, q.work, a).item() / q.model.decoder.layers


def at(moment: str, kind: str, q: Question, **axes: int) -> float:
    """Bytes of a kind at a moment of the step."""
    return float(moments(q, Layouts.of(**axes)).sizes[kind][MOMENTS.index(moment), 0])


def gradients_at_work(q: Question, tokens: int) -> float:
    """Bytes of the gradients of activations in a feed-forward layer: of the input of its last product, of the outputs of the others, and of
    the stream; 2 bytes each."""
    d = q.model.decoder
    widths = {op.name.rpartition(".")[2]: max(op.n, op.k) for _, op in q.model.placed if op.part == "ffw" and op.kind == "matmul"}
    return 2.0 * tokens * (sum(widths.values()) + d.hidden)


def bytes_of(kind: str, q: Question, **axes: int) -> float:
    return cost(q, **axes)[1][kind]


KORTHIKANTI: list[tuple[dict[str, int], int, int, int]] = [
    ({}, 10, 24, 5),  # tensor parallelism: eq. 1 (t = 1) and eq. 2: s b h (10 + 24/t + 5 a s / (h t))
    ({"sp": 1}, 0, 34, 5),  # sequence parallelism: eq. 3 and 4: s b h / t (34 + 5 a s / h)
    ({"sp": 1, "recompute": 1}, 0, 34, 0),  # with selective recompute: eq. 6: s b h 34 / t
    ({"recompute": 1}, 10, 24, 0),  # selective recompute alone: Table 2
]
"""Axes, and bytes per token and hidden unit: not sharded, sharded by tensor parallelism, of scores."""


def test_activations_of_a_layer_match_korthikantis_formulas() -> None:
    """Korthikanti et al. 2022, arXiv:2205.05198, section 4, with dropout masks: 34 bytes per token and hidden unit."""

    def check(size: tuple[str, int], b: int, t: int, formula: tuple[dict[str, int], int, int, int]) -> None:
        (model, seq), (axes, whole, cut, scores) = size, formula
        q = question(model, framework=PLAIN, batch=b, seq=seq)
        d = q.model.decoder
        expected = seq * b * d.hidden * (whole + cut / t + scores * d.heads * seq / (d.hidden * t))
        assert kept(q, tp=t, mbs=b, **axes) == pytest.approx(expected)

    check_every(check, product(SIZES, [1, 4], [1, 8], KORTHIKANTI))


def test_without_dropout_there_are_no_masks() -> None:
    """32 of the 34 bytes: a byte for each of the two masks of a layer; attention's own mask is among the 5 of the scores."""
    q = question("korthikanti-22b", framework=replace(PLAIN, dropout=False), batch=1)
    assert kept(q, recompute=1) == pytest.approx(2048 * 6144 * 32)


def test_flash_attention_keeps_no_scores() -> None:
    q = question("korthikanti-22b", framework=replace(PLAIN, attention="fa2"), batch=1)
    assert kept(q) == pytest.approx(2048 * 6144 * 34)


def test_full_recompute_keeps_the_input_of_every_layer_and_one_whole_layer() -> None:
    """Korthikanti et al. 2022, Table 2: 2 s b h a layer."""
    q = question("korthikanti-22b", framework=PLAIN, batch=1)
    inputs = 2 * 2048 * 6144 * 48
    one_layer = 2048 * 6144 * (34 + 5 * 64 * 2048 / 6144)
    assert at("loss", "activations", q, recompute=2) == pytest.approx(inputs)
    found = at("last layer", "activations", q, recompute=2)
    assert found == pytest.approx(inputs + one_layer + gradients_at_work(q, 2048))


@pytest.mark.parametrize("pp", [2, 4, 8])
def test_the_first_stage_holds_as_many_micro_batches_as_there_are_stages(pp: int) -> None:
    """So pipelining saves no activations: L / p layers of p micro-batches (Korthikanti et al. 2022, 4.2.3)."""
    q = question("korthikanti-22b", framework=PLAIN, batch=64)
    assert at("loss", "activations", q, pp=pp) == pytest.approx(at("loss", "activations", q))
    few = question("korthikanti-22b", framework=PLAIN, batch=1)
    assert at("loss", "activations", few, pp=pp) == pytest.approx(at("loss", "activations", few) / pp)


@pytest.mark.parametrize(("pp", "vpp"), [(4, 2), (8, 3), (8, 6)])
def test_interleaving_keeps_more_activations(pp: int, vpp: int) -> None:
    """1 + (p - 1) / (p m) times as much (Korthikanti et al. 2022, 4.2.3)."""
    q = question("korthikanti-22b", framework=PLAIN, batch=64)
    interleaved = at("loss", "activations", q, pp=pp, vpp=vpp, schedule=1)
    assert interleaved / at("loss", "activations", q, pp=pp) == pytest.approx(1 + (pp - 1) / (pp * vpp))


def test_a_parameter_takes_18_bytes_in_megatron_and_fewer_where_it_is_sharded() -> None:
    """bf16 weights, float32 gradients, AdamW: 18 bytes, and 6 + 12/d with the distributed optimizer of d ranks (Megatron's docs)."""
    q = question("llama-3-8b")
    n = q.model.params
    states = ("weights", "gradients", "optimizer")

    def per_parameter(**axes: int) -> float:
        return sum(cost(q, **axes)[1][kind] for kind in states) / n

    assert per_parameter() == pytest.approx(18, rel=1e-4)  # final norm apart
    assert per_parameter(dp_replicate=8) == pytest.approx(18, rel=1e-4)
    assert per_parameter(dp_shard=8, zero=1) == pytest.approx(6 + 12 / 8, rel=1e-4)
    assert per_parameter(tp=8) == pytest.approx(18 / 8, rel=1e-3)


@pytest.mark.parametrize(
    ("zero", "shared"), [(1, {"optimizer"}), (2, {"optimizer", "gradients"}), (3, {"optimizer", "gradients", "weights"})]
)
def test_each_zero_stage_shards_its_kinds_of_state(zero: int, shared: set[str]) -> None:
    """ZeRO, arXiv:1910.02054: stage 1 the optimizer's state, stage 2 gradients too, stage 3 parameters too."""
    q = question("llama-3-8b")
    whole, cut = cost(q, dp_replicate=8)[1], cost(q, dp_shard=8, zero=zero)[1]
    gathered = 2 * 2 * q.model.params / 32  # stage 3 has two of 32 layers whole at a time, 2 bytes a parameter
    for kind in ("optimizer", "gradients", "weights"):
        expected = whole[kind] / 8 + (gathered if kind == "weights" else 0) if kind in shared else whole[kind]
        assert cut[kind] == pytest.approx(expected, rel=0.01)
    for kind in ("activations", "logits"):
        assert cut[kind] == whole[kind]


def test_replication_does_not_change_memory() -> None:
    q = question("llama-3-8b")
    assert cost(q, dp_replicate=4, dp_shard=2, zero=3)[1] == cost(q, dp_replicate=1, dp_shard=2, zero=3)[1]


@pytest.mark.parametrize("model", ["mixtral-8x7b", "deepseek-v2-lite"])
def test_expert_parallelism_only_shards_the_experts(model: str) -> None:
    q = question(model)
    experts = sum(op.params * op.count for op in q.model.ops if op.expert)
    whole, cut = (bytes_of("weights", q, dp_shard=8, ep=ep, zero=1) for ep in (1, 8))
    assert whole - cut == pytest.approx(2 * experts * 7 / 8)


def test_the_optimizer_state_of_an_expert_is_sharded_over_the_ranks_that_hold_it() -> None:
    """Of 8 ranks with ep 4, each expert is on 2: 12 bytes x (dense / 8 + experts / 4 / 2), no less than 12 x all / 8."""
    q = question("mixtral-8x7b")
    apart, together = (bytes_of("optimizer", q, dp_shard=8, ep=ep, zero=1) for ep in (4, 1))
    assert apart == pytest.approx(together)
    alone = bytes_of("optimizer", q, dp_shard=2, cp=4, ep=8, zero=1)  # ep over cp as well: no one else has them
    assert alone == pytest.approx(together)


def test_context_ranks_shard_the_optimizer_state_like_data_ranks() -> None:
    """Both hold the same weights: 12 bytes x parameters over dp_shard x cp (torchtitan's FSDP mesh, Megatron's distributed optimizer)."""
    q = question("llama-3-8b")
    assert bytes_of("optimizer", q, dp_shard=2, cp=4, zero=1) == pytest.approx(12 * q.model.params / 8, rel=1e-4)
    assert bytes_of("optimizer", q, dp_shard=1, cp=4) == pytest.approx(12 * q.model.params, rel=1e-4)  # no ZeRO: each has it all


OFFLOADED = {how: OFFLOAD.index(how) for how in OFFLOAD}


def test_offload_moves_the_optimizer_and_then_the_parameters_to_the_host() -> None:
    q = question("llama-3-8b", framework="deepspeed")
    kept, moved, bare = (cost(q, dp_shard=8, zero=3, offload=OFFLOADED[how])[1] for how in ("none", "optimizer", "parameters"))
    assert kept["optimizer"] > 0 == moved["optimizer"] == bare["optimizer"]
    assert kept["weights"] == moved["weights"] > bare["weights"] > 0  # the layers at work come back


def on_host(q: Question, how: str, **axes: int) -> float:
    a, layers = Layouts.of(offload=OFFLOADED[how], **axes).as_floats(), np.full(1, float(q.model.decoder.layers))
    return host_bytes(q.model, q.work, a, layers, np.ones(1)).item()


def test_what_leaves_the_device_is_in_the_memory_of_the_host() -> None:
    """DeepSpeed with ZeRO 3 over 8: a host keeps, for an eighth of the parameters, 12 bytes of AdamW and 4 of the float32 gradient it is
    updated with; with parameters, 2 bytes of weights more. Activations are those that the device no longer has."""
    q = question("llama-3-8b", framework="deepspeed")
    axes, eighth = {"dp_shard": 8, "zero": 3}, q.model.params / 8
    assert on_host(q, "none", **axes) == 0
    assert on_host(q, "optimizer", **axes) == pytest.approx(16 * eighth, rel=1e-4)
    assert on_host(q, "parameters", **axes) == pytest.approx(18 * eighth, rel=1e-4)
    program = question("llama-3-8b", framework="fsdp", batch=8)
    assert on_host(program, "activations", **axes) == pytest.approx(32 * kept(program, **axes))


def test_offloaded_activations_stay_on_the_device_for_two_layers() -> None:
    """The layer that computes, and the one that is copied."""
    q = question("llama-3-8b", framework="fsdp")
    here, away = (at("loss", "activations", q, dp_shard=8, zero=3, offload=OFFLOADED[how]) for how in ("none", "activations"))
    assert here == pytest.approx(32 * kept(q))
    assert away == pytest.approx(2 * kept(q))


def test_logits_are_as_wide_as_the_vocabulary_and_sharded_by_tp() -> None:
    """Llama 3 8B, 2048 tokens, 128256 words, 8 bytes around the loss of each logit: 2.1 GB; tp cuts them."""
    q = question("llama-3-8b")
    assert bytes_of("logits", q) == 2048 * 128256 * MEGATRON.logit_bytes
    assert bytes_of("logits", q, tp=8) == bytes_of("logits", q) / 8


@pytest.mark.parametrize("optimizer", ["sgd", "adamw-8bit", "muon"])
def test_a_leaner_optimizer_takes_less(optimizer: str) -> None:
    assert bytes_of("optimizer", question(optimizer=optimizer)) < bytes_of("optimizer", question())


def test_the_calibrated_factor_scales_activations() -> None:
    plain, scaled = (question(calibration=Calibration(activations=share)) for share in (1.0, 1.25))
    assert bytes_of("activations", scaled) == 1.25 * bytes_of("activations", plain)


@settings(max_examples=60)
@given(questions_with_layouts())
def test_bytes_are_finite_and_never_negative_and_kinds_add_up_to_the_peak(case: tuple[Question, Layouts]) -> None:
    q, layouts = case
    found = evaluate(q, layouts)
    assert set(found.memory) == set(TRAIN_KINDS)
    for kind in TRAIN_KINDS:
        assert found.memory[kind].shape == (len(layouts),)
        assert (found.memory[kind] >= 0).all()  # NaN is not
        assert (found.memory[kind] < 1e18).all()
    assert sums_to(found.memory, found.peak)


@settings(max_examples=60)
@given(questions_with_layouts(most=1))
def test_bytes_do_not_depend_on_speeds(case: tuple[Question, Layouts]) -> None:
    q, layouts = case
    assert evaluate(faster(q, memory=3, link=3, network=3, flops=3), layouts).peak == evaluate(q, layouts).peak


def test_split_weights_take_14_bytes_per_parameter_and_gradients_replace_freed_activations() -> None:
    """trainer/adamw.py: 2 bytes of weight, 2 of its rest, 8 of moments, 2 of gradient; with micro-batches those are float32 and stay."""
    q = question("llama-3.2-1b", framework=find_framework("meshwise"), batch=8, seq=2048)
    one, several = cost(q, mbs=8)[1], cost(q, mbs=2)[1]
    params = q.model.params - q.model.decoder.hidden  # the last norm is not counted on a stage
    assert one["weights"] == pytest.approx(2 * params)
    assert one["optimizer"] == pytest.approx(10 * params)
    assert one["gradients"] == 0  # 2.5 GB, of which none is there before 20 GB of activations begin to go
    assert several["gradients"] == pytest.approx(4 * params)
    tiny = question("llama-3.2-1b", framework=find_framework("meshwise"), batch=1, seq=64)
    assert at("loss", "gradients", tiny) == 0
    assert at("first layer", "gradients", tiny) == cost(tiny)[1]["gradients"] == pytest.approx(2 * params)
    last_layer = 2 * at("loss", "activations", tiny) / 16  # with the gradients of its activations
    assert at("first layer", "activations", tiny) == pytest.approx(last_layer + gradients_at_work(tiny, 64))


def test_moments_of_16_bits_take_4_bytes_less_per_parameter() -> None:
    """trainer/ops/adamw.py: 2 bytes of a weight's rest and 2 of each moment."""
    long, short = (
        question("llama-3.2-1b", framework=find_framework("meshwise"), batch=8, seq=2048, optimizer=name)
        for name in ("adamw", "adamw-bf16")
    )
    params = short.model.params - short.model.decoder.hidden
    assert bytes_of("optimizer", short, mbs=8) == pytest.approx(6 * params)
    assert bytes_of("optimizer", long, mbs=8) == pytest.approx(10 * params)


@pytest.mark.parametrize("framework", ["megatron", "torchtitan", "fsdp", "meshwise"])
def test_a_materialised_loss_takes_more_than_a_chunked_one_and_that_more_than_a_fused_one(framework: str) -> None:
    """Of 32768 tokens and 128256 words; of few tokens, the head's own gradient is larger than all logits. The framework's own kind is what
    a question that names none gets."""
    kinds = {loss: question("llama-3-8b", framework=framework, batch=16, loss=loss) for loss in (*LOSSES, "")}
    sizes = {loss: at("loss", "logits", q, mbs=16) for loss, q in kinds.items()}
    assert sizes["materialised"] > sizes["chunked"] > sizes["fused"] > 0
    assert sizes[""] == sizes[find_framework(framework).loss]


def test_a_fused_loss_keeps_the_gradients_of_the_head_and_of_its_input_only() -> None:
    """4 bytes for each of 128256 x 4096 weights and 2 for each of 2048 x 4096 inputs; no logit at all."""
    q = question("llama-3-8b", loss="fused")
    assert bytes_of("logits", q) == pytest.approx(4 * 128256 * 4096 + 2 * 2048 * 4096)


def test_logits_computed_in_parts_take_one_part_at_a_time() -> None:
    """4.2 GB of 16-bit logits in 4 parts of a GiB at most, one at a time; the gradient of the head in float32, of its input in 16 bits."""
    q = question("llama-3.2-1b", framework=find_framework("meshwise"), batch=8, seq=2048)
    rows, vocabulary, hidden = 8 * 2048, 128256, 2048
    expected = 2 * rows * vocabulary / 4 + 4 * vocabulary * hidden + 2 * rows * hidden
    assert bytes_of("logits", q, mbs=8) == pytest.approx(expected)


# Runs that were refused although they ran.


def test_a_sequence_cut_over_context_ranks_shards_the_state_without_data_ranks() -> None:
    """Llama 3 8B at 256k tokens, cp 8, dp 1, ZeRO 3: the 8 context ranks are FSDP's mesh, so each has an eighth of the 16 bytes of state
    and two gathered layers of 32."""
    q = question("llama-3-8b", framework="torchtitan", batch=1, seq=2**18)
    held = cost(q, cp=8, zero=3, recompute=2)[1]
    state = sum(held[kind] for kind in ("weights", "gradients", "optimizer"))
    assert state == pytest.approx((16 / 8 + 2 * 2 / 32) * q.model.params, rel=1e-3)


def test_fsdp_has_16_bytes_of_state_a_parameter_and_checkpoints_12() -> None:
    """Float32 weights, which are the master copy, their float32 gradient and two moments; a checkpoint has no gradient. Gathered layers
    are in 16 bits: two of 32."""
    for framework in ("fsdp", "torchtitan", "maxtext"):
        q = question("llama-3-8b", framework=framework)
        held, n = cost(q, dp_shard=8, zero=3)[1], q.model.params
        assert held["gradients"] + held["optimizer"] == pytest.approx(16 * n / 8, rel=1e-3)
        assert held["weights"] == pytest.approx(2 * 2 * n / 32, rel=1e-3)
        assert q.work.checkpoint_bytes(n) == 12 * n
    separate = question("llama-3-8b", framework="deepspeed").work
    assert separate.checkpoint_bytes(1e9) == 14e9  # 16-bit weights beside their master copy


def test_a_pipeline_of_zero_3_keeps_gathered_weights_and_whole_gradients() -> None:
    """FSDP does not reshard between micro-batches of a pipeline: 2 bytes of weights and 4 of gradients for all parameters of a stage."""
    q = question("llama-3-8b", framework="torchtitan", batch=64)
    held = cost(q, dp_shard=8, pp=2, zero=3)[1]
    half = q.model.params / 2
    assert held["weights"] == pytest.approx(2 * half, rel=0.01)
    assert held["gradients"] == pytest.approx(4 * half, rel=0.01)
    assert held["optimizer"] == pytest.approx(12 * half / 8, rel=0.01)


@pytest.mark.parametrize(("model", "rotates"), [("llama-3-8b", True), ("bloom-560m", False)])
def test_only_rotary_models_keep_rotated_queries_and_keys(model: str, rotates: bool) -> None:
    """Eager autograd keeps q and k again after they are rotated, 2 bytes an element, and the gate after its activation function."""
    program = find_framework("fsdp")
    eager, fused = (
        kept(question(model, framework=replace(program, keeps_intermediates=how), batch=1), mbs=1) for how in (True, False)
    )
    d = question(model).model.decoder
    copies = 2 * 2048 * (d.hidden + d.kv_heads * d.head_dim + d.ffn) if rotates else 0
    assert eager - fused == pytest.approx(copies)


def test_megatron_deepspeed_sums_gradients_in_float32_unless_it_trains_in_fp16() -> None:
    """BigScience trained in bf16 with float32 sums, 4 bytes a parameter; fp16 gradients have 2."""
    sizes = {
        precision: bytes_of("gradients", question("bloom-560m", framework="megatron-deepspeed", precision=precision))
        for precision in ("bf16", "fp16")
    }
    assert sizes["bf16"] == 2 * sizes["fp16"]
    same = {bytes_of("gradients", question("bloom-560m", precision=precision)) for precision in ("bf16", "fp16")}
    assert len(same) == 2  # Megatron-LM sums in float32 with --bf16 alone


def test_sequence_parallelism_gathers_three_whole_activations_for_the_layer_at_work() -> None:
    """Its input, and the gradients of its input and its output, 2 bytes a hidden unit each."""
    q = question("korthikanti-22b", framework=PLAIN, batch=1)
    stored = 48 * kept(q, tp=8, sp=1)
    gathered = GATHERED_ACTIVATIONS * 2 * 2048 * 6144
    assert at("last layer", "activations", q, tp=8, sp=1) - stored == pytest.approx(gathered + gradients_at_work(q, 2048) / 8)


def test_gradients_appear_in_the_backward_pass_unless_earlier_micro_batches_left_them() -> None:
    """One H200, Llama 3.2 1B with transformers: 19.34 GiB with one micro-batch, 21.64 with four (h200_transformers_tuned)."""
    params = 2 * 1_235_814_400
    one, four = (question("llama-3.2-1b", "1xh200", framework="accelerate", batch=batch, seq=2048) for batch in (4, 16))
    assert at("loss", "gradients", one, mbs=4) == 0
    assert at("loss", "gradients", four, mbs=4) == at("update", "gradients", one, mbs=4) == pytest.approx(params, rel=1e-5)


def test_a_foreach_update_takes_one_more_value_per_parameter_than_a_fused_one() -> None:
    """The same runs: 11.57 and 9.27 GiB at the update."""
    plain, fused = (
        question("llama-3.2-1b", "1xh200", framework="accelerate", optimizer=name) for name in ("adamw-foreach", "adamw-fused")
    )
    difference = at("update", "optimizer", plain) - at("update", "optimizer", fused)
    assert difference == pytest.approx(2 * 1_235_814_400, rel=1e-5)
    assert at("loss", "optimizer", plain) == at("loss", "optimizer", fused)


def test_an_optimizer_inside_the_backward_pass_leaves_the_gradient_of_one_tensor() -> None:
    q = question("llama-3-8b", "1xh200", framework="torchtune", in_backward=True)
    assert cost(q)[1]["gradients"] == pytest.approx(2 * 128256 * 4096)


def test_what_the_allocator_keeps_never_decides_whether_a_layout_fits() -> None:
    """PyTorch frees cached blocks before it fails: a device that is full has none."""
    for mbs in (1, 2, 4, 8, 16, 32, 64):
        q = question("llama-3-8b", "1xa100-80gb-sxm", framework="accelerate", finetune=parse("lora:16"), batch=64)
        found = cost(q, mbs=mbs, recompute=2)[1]
        needed, room = sum(found.values()) - found["allocator"], q.chip.memory * (1 - q.work.reserve)
        assert found["allocator"] == 0 if needed > room else 0 < found["allocator"] <= room - needed


def test_fsdp_keeps_the_tables_of_the_root_module_and_one_layer_gathered() -> None:
    """Llama 3 8B on 2 and 4 A100: 2.42 GiB beside the shards (fms_a100_liger)."""
    two, four = (
        question("llama-3-8b", f"{n}xa100-80gb-sxm", framework="foak", finetune=parse("lora:16:attention"), batch=16)
        for n in (2, 4)
    )
    weights = [at("loss", "weights", q, dp_shard=n, zero=3, mbs=4) for q, n in ((two, 2), (four, 4))]
    frozen = 2 * two.model.params
    for held, n in zip(weights, (2, 4), strict=True):
        assert (held - frozen / n) / 2**30 == pytest.approx(2.42, rel=0.05)


def test_hooks_of_frozen_modules_hold_the_inputs_of_layers_and_their_gradients() -> None:
    q = question("llama-3-8b", "2xa100-80gb-sxm", framework="foak", finetune=parse("lora:16:attention"), batch=16)
    held, alone = (at("first layer", "activations", q, mbs=4, recompute=2, **axes) for axes in ({"dp_shard": 2, "zero": 3}, {}))
    inputs = 2 * 4096 * 32 * 4 * 2048
    assert held - alone == pytest.approx(2 * inputs - 2 * inputs / 32)


# Recompute.

EVERY_WAY: dict[str, int] = dict(zip(RECOMPUTE, range(len(RECOMPUTE)), strict=True))


@pytest.mark.parametrize("framework", ["megatron", "megatron-deepspeed", "torchtitan", "maxtext", "nanotron"])
@pytest.mark.parametrize("model", ["llama-3-8b", "mixtral-8x7b", "bloom-560m", "gemma-2-2b"])
def test_every_way_to_recompute_lies_between_none_and_full(model: str, framework: str) -> None:
    """It keeps no more than none and no less than full, and is no faster than none and no slower than full. Where it saves nothing, as
    core_attn with flash attention, the layer at work still has its input twice."""
    q = question(model, "1x8xh100-sxm", framework, batch=8)
    layer_input = 2 * 2048 * q.model.decoder.hidden

    def check(how: str) -> None:
        for axes in ({"dp_shard": 8, "zero": 1}, {"tp": 8, "sp": 1}, {"tp": 8}):
            none, way, full = (cost(q, **axes, recompute=EVERY_WAY[name]) for name in ("none", how, "full"))
            sizes = [one[1]["activations"] for one in (full, way, none)]
            assert sizes[0] <= sizes[1] * (1 + 1e-9)
            assert sizes[1] <= sizes[2] + layer_input
            fastest, time, slowest = (sum(one[0].values()) for one in (none, way, full))
            assert fastest <= time * (1 + 1e-9)
            assert time <= slowest * (1 + 1e-9)

    check_every(check, [(how,) for how in RECOMPUTE])


def test_what_each_module_of_megatron_saves() -> None:
    """Llama 3 8B, 16-bit activations, in bytes a token and layer: `mlp` keeps neither up and gate, 2 x 2 x 14336, nor their product,
    2 x 14336; `layernorm` half of 3 x 2 x 4096 (the second norm's input and both outputs)."""
    q = question("llama-3-8b")
    none = kept(q)
    assert none - kept(q, recompute=EVERY_WAY["mlp"]) == pytest.approx(2048 * 6 * 14336)
    assert none - kept(q, recompute=EVERY_WAY["layernorm"]) == pytest.approx(2048 * 3 * 4096)
    assert none - kept(q, recompute=EVERY_WAY["full"]) == pytest.approx(none - 2048 * 2 * 4096)


def test_selective_means_what_the_framework_means() -> None:
    """Megatron recomputes attention without its projections, which flash attention does anyway; torchtitan every second product."""
    megatron, titan = (question("llama-3-8b", framework=name) for name in ("megatron", "torchtitan"))
    assert kept(megatron, recompute=1) == kept(megatron)
    assert kept(titan, recompute=1) < 0.6 * kept(titan)


def test_our_trainer_keeps_queries_and_keys_before_their_norms() -> None:
    q = question("qwen3-0.6b", "1xh200", framework="meshwise")
    d = q.model.decoder
    plain = replace(q, model=replace(q.model, decoder=replace(d, qk_norm="")))
    assert kept(q) - kept(plain) == pytest.approx(2 * q.work.seq * (d.heads + 2 * d.kv_heads) * d.head_dim)


def test_8_bits_add_narrow_copies_where_activations_are_recomputed_from_norms() -> None:
    """A layer of Llama keeps two inputs of products in 8 bits, which 16 bits recompute, and attention's output in both precisions."""
    wide, narrow = (question("llama-3-8b", "1xh200", framework="meshwise", precision=precision) for precision in ("bf16", "fp8"))
    assert kept(narrow) - kept(wide) == pytest.approx(3 * wide.work.seq * wide.model.decoder.hidden)
