"""The registry of families: one module each, read by the launcher without torch, as all of the contract is."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from meshwise.workers.trainer import contract, models
from meshwise.workers.trainer.contract.models.registry import Family, families, import_part, unsupported

CONTRACT = Path(contract.__file__).parent
TORCH_FREE = (
    "decoder.settings",
    "decoder.rows",
    *(
        "trainer.contract." + ".".join(path.relative_to(CONTRACT).with_suffix("").parts).removesuffix(".__init__")
        for path in sorted(CONTRACT.rglob("*.py"))
        if path.parent != CONTRACT or path.stem != "__init__"
    ),
)
"""The modules that the launcher imports, or may."""


def test_every_module_of_families_is_one() -> None:
    modules = {path.stem for path in Path(models.__file__).parent.glob("families/[a-z]*.py")}
    assert {kind.removesuffix("_text") for kind in families()} == modules


@pytest.mark.parametrize(("kind", "family"), families().items())
def test_a_family_has_a_model_and_either_sharding_or_a_predictor(kind: str, family: Family) -> None:
    config = {"model_type": kind}
    assert callable(import_part(config, "model").build)
    assert callable(import_part(config, "predictor").predictor if family.recurrent else import_part(config, "sharding").styles)


@pytest.mark.parametrize("config", [{}, {"model_type": "mamba2"}])
def test_an_unsupported_model_is_refused_with_the_supported_ones(config: dict[str, str]) -> None:
    assert unsupported(config).endswith(f"the trainer supports {', '.join(families())}")


def test_modules_that_the_launcher_imports_need_no_torch() -> None:
    """Sizes, rules and expected tensors of every family are read by a machine without torch, and imports stay cheap."""
    script = f"""
import importlib, json, sys
for name in {TORCH_FREE!r}:
    importlib.import_module("meshwise.workers." + name)
from meshwise.workers.trainer.contract.files.expected import config_json, shapes
from meshwise.workers.trainer.contract.models.registry import families, unsupported
from meshwise.workers.trainer.contract.settings import Layout, Settings, broken_rules
size = {{"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 256}}
seen = {{}}
for kind in families():
    config = size | {{"model_type": kind}}
    rules = broken_rules(Settings(name="x", model=config, layout=Layout(), batch=1, seq=16))
    seen[kind] = [unsupported(config), rules, len(shapes(config)) > 10, config_json(config, "float32").count("torch_dtype")]
print(json.dumps([seen, [name for name in ("torch", "numpy", "triton") if name in sys.modules]]))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    seen, heavy = json.loads(done.stdout)
    assert heavy == []
    assert seen == {kind: ["", [], True, 1] for kind in families()}
