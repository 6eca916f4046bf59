"""On twenty machines the first row of `pick` fits and starts as printed: engines define every flag of its commands, and llama.cpp's own
loader, which allocates nothing, finds every tensor in a file of the same header and needs the memory that was predicted."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from meshwise import api
from meshwise.catalogue.files import BUILT_IN
from meshwise.models import find, make_gguf
from meshwise.models.formats import FORMATS, weights
from meshwise.models.tensors import architecture
from meshwise.plan.pick.answer import Pick, Picked
from meshwise.plan.pick.trial import machine
from support.machines import MACHINES

MIB = 2.0**20
FLAGS: dict[str, list[str]] = json.loads((Path(__file__).parents[2] / "fixtures/engines/flags.json").read_text(encoding="utf-8"))
FLAGS["vllm"] = json.loads((BUILT_IN / "programs/keys/vllm.json").read_text(encoding="utf-8"))
DRY_RUN = """
import os, sys, xllamacpp as x
p = x.CommonParams()
p.model.path, p.n_ctx, p.n_parallel, p.verbosity, p.port = sys.argv[1], int(sys.argv[2]), 1, 4, 0
p.no_alloc, p.load_mode, p.no_extra_bufts, p.warmup, p.fit_params = True, x.llama_load_mode.LLAMA_LOAD_MODE_NONE, True, False, False
p.flash_attn_type = x.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
x.Server(p)
os._exit(0)
"""
"""llama.cpp's loader without weights. Once its graphs are reserved it would compute and has nothing to compute with, so it ends badly."""
SIZES = r"print_info: file size += ([\d.]+) (GiB|MiB)|(?:kv_cache|recurrent)\w*: size = +([\d.]+) MiB|compute buffer size = +([\d.]+) MiB"

pytestmark = pytest.mark.slow


@cache
def first(on: str) -> Picked:
    found = api.pick(on=on, top=1)
    assert isinstance(found, Pick)
    return found.best


@pytest.mark.parametrize("on", MACHINES)
def test_every_flag_is_one_of_the_engine(on: str) -> None:
    for line in first(on).commands:
        words = shlex.split(line)
        flags = [word for word in words if word.startswith("-")]
        assert flags
        assert [flag for flag in flags if flag not in FLAGS[words[0]]] == []


@pytest.mark.parametrize("on", [on for on in MACHINES if not on.startswith("8x")])  # servers with a network start vLLM alone
def test_llama_cpp_takes_the_model_and_needs_the_memory_that_was_predicted(
    on: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    picked = first(on)
    if picked.engine != "llama.cpp":
        found = api.pick(on=on, top=1, engine="llama.cpp")
        assert isinstance(found, Pick)
        picked = found.best
    words = shlex.split(picked.commands[0])
    assert words[1:3] == ["-hf", f"{words[2].partition(':')[0]}:{picked.format}"]
    assert int(words[words.index("-c") + 1]) == picked.context
    needed = dry_run(picked.preset, picked.format, picked.context, tmp_path_factory.getbasetemp())
    assert 0 < needed < machine(on).bytes
    if machine(on).cluster.devices == 1:  # with the embedding, which a card's share does not have
        assert picked.memory == pytest.approx(needed, rel=0.08)


@cache
def dry_run(preset: str, fmt: str, context: int, folder: Path) -> float:
    """Return the bytes that llama.cpp would allocate for weights, cache and graphs."""
    pytest.importorskip("xllamacpp")
    path = folder / "model.gguf"
    header(preset, fmt, path)
    done = subprocess.run([sys.executable, "-c", DRY_RUN, str(path), str(context)], capture_output=True, text=True, check=False)
    path.unlink()
    log = done.stdout + done.stderr
    assert "sched_reserve: reserve took" in log, log[-2000:]
    sizes = re.findall(SIZES, log)
    assert len(sizes) >= 3
    return sum(
        float(file) * (1024 if unit == "GiB" else 1) * MIB if file else float(cache or graph) * MIB
        for file, unit, cache, graph in sizes
    )


def header(preset: str, fmt: str, path: Path) -> None:
    """Write a file with all tensors of a model and none of their values, in its architecture's metadata."""
    from gguf import GGUFWriter

    values, _, _ = find.find_values(preset)
    model = find.find_model(preset)
    content = make_gguf.GgufFile(model, weights(model, FORMATS[fmt]), values, architecture(model).name)
    plain: Any = make_gguf._metadata
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(make_gguf, "_metadata", lambda given: plain(given) | delta_net(values))
        patch.setattr(GGUFWriter, "add_bos_token_id", sections(GGUFWriter.add_bos_token_id, content.architecture))
        make_gguf.write(content, path, header_only=True)


def sections(plain: Callable[..., None], arch: str) -> Callable[..., None]:
    """Return the writer of a token with the sections of rotary embeddings before it: they are no single number."""

    def add(writer: Any, token: int) -> None:
        if arch.startswith("qwen35"):
            writer.add_array(f"{arch}.rope.dimension_sections", [11, 11, 10, 0])
        plain(writer, token)

    return add


def delta_net(values: dict[str, Any]) -> dict[str, int | float]:
    """Return the metadata of gated delta nets, which our writer of files does not write."""
    if "linear_num_value_heads" not in values:
        return {}
    heads, size = values["linear_num_value_heads"], values["linear_value_head_dim"]
    made = {
        "ssm.conv_kernel": values["linear_conv_kernel_dim"], "ssm.state_size": values["linear_key_head_dim"],
        "ssm.group_count": values["linear_num_key_heads"], "ssm.time_step_rank": heads, "ssm.inner_size": heads * size,
        "full_attention_interval": values["full_attention_interval"], "rope.dimension_count": 64,
        "attention.layer_norm_rms_epsilon": 1e-6,
    }  # fmt: skip
    if "shared_expert_intermediate_size" in values:
        made["expert_shared_feed_forward_length"] = values["shared_expert_intermediate_size"]
    return made
