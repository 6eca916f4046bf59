"""llama.cpp's own dry run takes the first command that `pick` prints on twenty machines: with a file of the same tensors without weights it
accepts the arguments, finds every tensor, and needs no more memory than the machine has.

Needs: llama-fit-params of llama.cpp (2026) in $PATH or as $LLAMA_FIT_PARAMS
"""

import os
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from meshwise import api
from meshwise.models import find, make_gguf
from meshwise.models.formats import FORMATS, weights
from meshwise.models.tensors import architecture
from meshwise.plan.pick.answer import Pick, Picked
from meshwise.plan.pick.trial import machine
from support.machines import MACHINES

MIB = 2.0**20
DRY_RUN = os.environ.get("LLAMA_FIT_PARAMS") or shutil.which("llama-fit-params")
pytestmark = pytest.mark.skipif(not DRY_RUN, reason="needs llama-fit-params")


def header(picked: Picked, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write a file with all tensors of a model and none of their values, in its architecture's metadata."""
    values, _, _ = find.find_values(picked.preset)
    model = find.find_model(picked.preset)
    content = make_gguf.GgufFile(model, weights(model, FORMATS[picked.format]), values, architecture(model).name)
    plain: Any = make_gguf._metadata
    monkeypatch.setattr(make_gguf, "_metadata", lambda given: plain(given) | delta_net(values))
    from gguf import GGUFWriter

    monkeypatch.setattr(GGUFWriter, "add_bos_token_id", sections(GGUFWriter.add_bos_token_id, content.architecture))
    make_gguf.write(content, path, header_only=True)


def sections(plain: Any, arch: str) -> Any:
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


@pytest.mark.parametrize("on", MACHINES)
def test_the_first_command_starts(on: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = api.pick(on=on, engine="llama.cpp", top=1)
    assert isinstance(found, Pick)
    (line,) = found.best.commands
    words = shlex.split(line)
    at = words.index("-hf")
    header(found.best, tmp_path / "model.gguf", monkeypatch)
    words[at : at + 2] = ["-m", str(tmp_path / "model.gguf")]
    of_cards = ("-sm", "-ts", "-dev")  # this machine has no cards to split over
    plain = [word for i, word in enumerate(words[1:], 1) if word not in of_cards and words[i - 1] not in of_cards]
    done = subprocess.run([str(DRY_RUN), *plain, "--no-repack", "--fit-print", "on"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-800:]
    needed = sum(float(number) for row in re.findall(r"^\S+((?: +\d+)+) *$", done.stdout, re.MULTILINE) for number in row.split())
    assert 0 < needed * MIB < machine(on).bytes
    if machine(on).cluster.devices == 1:  # with the embedding, which a card's share does not have
        assert found.best.memory == pytest.approx(needed * MIB, rel=0.08)
