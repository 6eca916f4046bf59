"""Adapters have the parameters that peft counts, on the linear layers that transformers builds."""

import csv
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from meshwise.cost.finetune import parse
from meshwise.errors import UserError
from meshwise.models.families.description import describe
from meshwise.models.find import find_model
from meshwise.models.model import build
from meshwise.models.modules import modules, targeted
from support.adapters import adapter_parameters
from support.every import check_every

TABLE = Path(__file__).parent.parent / "fixtures/finetune/peft.csv"


def counted_by_peft() -> list[dict[str, str]]:
    with TABLE.open() as file:
        return list(csv.DictReader(file))


def test_adapters_have_as_many_parameters_as_peft_trains() -> None:
    def check(row: dict[str, str]) -> None:
        finetune = parse(row["finetune"])
        ours = adapter_parameters(find_model(row["model"]), finetune.targets, finetune.rank, finetune.method == "dora")
        assert ours == int(row["parameters"])

    rows = counted_by_peft()
    assert len(rows) >= 20
    check_every(check, ((row,) for row in rows))


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
def test_every_causal_type_has_the_linear_layers_that_transformers_builds() -> None:
    """A rank of 8 on every layer. Types with experts, whose adapters peft converts, are in the table above."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers", reason="the oracle of every name, and not installed")
    from support.every_type import CAUSAL, reference, small_values

    compared: list[str] = []

    def check(kind: str) -> None:
        values = small_values(kind)
        ours = build(values, kind, "")
        if not modules(ours) or any(op.expert for op in ours.ops):
            return
        try:
            theirs: Any = reference(values)
        except Exception:
            return  # its defaults contradict each other
        head, found = theirs.get_output_embeddings(), Counter[str]()
        for name, layer in theirs.named_modules():
            if layer is not head and (isinstance(layer, torch.nn.Linear) or type(layer).__name__ == "Conv1D"):
                found[name.rpartition(".")[2]] += 8 * sum(layer.weight.shape)
        if not found:
            return
        compared.append(kind)
        names = {name for module in modules(ours) for path in module.path.split() for name in [path.rpartition(".")[2]]}
        assert names == set(found)
        assert sum(module.adapter(8) * module.count for module in modules(ours)) == sum(found.values())

    kinds = [kind for kind in CAUSAL if not describe(kind).refusal and "text" not in describe(kind).words]
    check_every(check, ((kind,) for kind in kinds))
    assert len(compared) >= 85


def test_a_target_that_the_model_lacks_is_refused_with_those_that_exist() -> None:
    with pytest.raises(
        UserError, match=r"no module 'q_porj'; did you mean 'q_proj'\?; it has q_proj, k_proj, v_proj, o_proj, gate_proj"
    ):
        targeted(find_model("llama-3.2-1b"), ("q_porj",), 8)


def test_a_rank_above_the_smaller_side_of_a_module_is_refused() -> None:
    with pytest.raises(UserError, match=r"rank 1024 exceeds the smaller side of k_proj \(512 x 2048\); expected at most 512"):
        targeted(find_model("llama-3.2-1b"), ("k_proj",), 1024)


def test_a_type_without_names_is_refused() -> None:
    with pytest.raises(UserError, match="expected full or freeze:N"):
        targeted(find_model("gemma-3n-e2b"), ("all-linear",), 8)


def test_short_words_name_the_layers_of_a_part() -> None:
    model = find_model("llama-3.2-1b")
    assert {module.name for module in targeted(model, ("attention",), 8)} == {"q_proj", "k_proj", "v_proj", "o_proj"}
    assert {module.name for module in targeted(model, ("mlp",), 8)} == {"gate_proj", "up_proj", "down_proj"}


@pytest.mark.parametrize(
    ("model_type", "names"),
    [
        ("qwen", {"c_attn", "c_proj", "w1", "w2"}),
        ("chatglm", {"query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"}),
        ("baichuan", {"W_pack", "o_proj", "gate_proj", "up_proj", "down_proj"}),
        ("internlm2", {"wqkv", "wo", "w1", "w2", "w3"}),
    ],
)
def test_types_of_the_hub_have_the_names_of_their_own_code(model_type: str, names: set[str]) -> None:
    """modeling_*.py beside their weights."""
    sizes = {"hidden_size": 256, "intermediate_size": 512, "num_attention_heads": 4, "num_hidden_layers": 2, "vocab_size": 1000}
    sizes |= {"num_layers": 2, "ffn_hidden_size": 512, "kv_channels": 64, "padded_vocab_size": 1000}
    assert {module.name for module in modules(build({"model_type": model_type, **sizes}, model_type, ""))} == names
