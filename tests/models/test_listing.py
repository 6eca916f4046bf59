"""The catalogues as rows, and layers in words."""

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwise import api
from meshwise.catalogue.chips import chips, find_chip
from meshwise.catalogue.clusters import cluster_files, find_cluster
from meshwise.catalogue.frameworks import Framework, names
from meshwise.errors import UserError
from meshwise.models.find import find_model, presets
from meshwise.models.listing import (
    chip_row,
    chip_rows,
    cluster_row,
    cluster_rows,
    framework_rows,
    layer_runs,
    look_up,
    model_rows,
)
from meshwise.models.model import Model, build
from support.small_configs import small


def test_every_entry_of_a_catalogue_has_its_row() -> None:
    assert [row["chip"] for row in chip_rows()] == [chip.key for chip in chips()]
    assert [row["cluster"] for row in cluster_rows()] == list(cluster_files())
    assert [row["model"] for row in model_rows()] == list(presets())


def test_a_row_is_plain_data() -> None:
    for row in [*chip_rows(), *cluster_rows(), *model_rows(), *framework_rows()]:
        assert json.loads(json.dumps(row, allow_nan=False)) == row


def test_every_release_of_a_framework_is_listed_with_what_it_changed_and_where_that_is_stated() -> None:
    rows = {row["name"]: row for row in framework_rows()}
    assert len(rows) == len(set(names().values()))
    for row in rows.values():
        days = [one["date"] for one in row["releases"]]
        assert days == sorted(days)
        assert all(one["changes"] and one["source"] for one in row["releases"])
    assert any(row["variant_of"] for row in rows.values())


def test_a_framework_is_found_by_every_name_of_it() -> None:
    for name in names():
        found = look_up("frameworks", name)
        assert isinstance(found, Framework), name
        assert names()[name] in (found.key, found.name, found.program), name


def test_tiers_above_the_nodes_are_listed() -> None:
    line = {"name": "800Gbps,20ms", "nodes": 4, "oversubscription": 0.0, "bandwidth": 1e11, "latency": 0.02}
    assert cluster_row("two", find_cluster("2x(4x8xh100-sxm)@800Gbps,20ms"))["tiers"] == [line]
    assert cluster_row("one", find_cluster("jean-zay"))["tiers"] == []


def test_a_pod_that_no_source_describes_is_none() -> None:
    assert chip_row(replace(find_chip("tpu-v7"), torus=None))["pod"] is None
    assert chip_row(find_chip("tpu-v5p"))["pod"] == [16, 20, 28]


def test_a_users_broken_preset_is_listed_with_the_reason(home: Path) -> None:
    (home / "models" / "broken.json").write_text("{")
    (row,) = [row for row in model_rows() if row["model"] == "broken"]
    assert "not valid JSON" in str(row["source"])


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("llama-3-70b", "80 x attention + ffw"),
        ("deepseek-v3", "3 x attention + ffw, 58 x attention + moe"),
        ("gemma-2-2b", "13 x attention.window4096 + ffw, 13 x attention + ffw"),
        ("mamba2-130m", "24 x mamba"),
        ("llama-4-maverick", "24 x attention.chunk8192 + ffw, 12 x attention.chunk8192 + moe, 12 x attention + moe"),
        ("qwen3-next-80b-a3b", "36 x linear_attention + moe, 12 x attention + moe"),
    ],
)
def test_the_pattern_of_layers_is_shown_in_words(name: str, words: str) -> None:
    assert layer_runs(find_model(name)) == words


def with_windows(kinds: list[bool]) -> Model:
    types = ["sliding_attention" if windowed else "full_attention" for windowed in kinds]
    return build(small("gemma2", num_hidden_layers=len(kinds), layer_types=types), "x", "")


def test_a_short_pattern_keeps_its_order() -> None:
    assert layer_runs(with_windows([True, False, True])) == (
        "1 x attention.window32 + ffw, 1 x attention + ffw, 1 x attention.window32 + ffw"
    )


@given(st.lists(st.booleans(), min_size=1, max_size=60))
def test_no_layer_is_lost_in_the_words(kinds: list[bool]) -> None:
    runs = layer_runs(with_windows(kinds))
    assert sum(int(run.split(" x ")[0]) for run in runs.split(", ")) == len(kinds)
    assert ("window" in runs) == any(kinds)


def test_calibrations_say_what_they_were_fitted_to_and_what_their_file_is(tmp_path: Path) -> None:
    listed = {row["calibration"]: row for row in api.show("calibrations")}
    assert set(listed) == set(api.names("calibrations"))
    row = listed["a100-fsdp"]
    file = Path(api.__file__).parent / "data" / "calibration" / "a100-fsdp.toml"
    assert row["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()[:12]
    assert (row["use"], row["file"], "llm_foundry_a100" in row["fitted_on"]) == ("training", "built in", True)
    assert listed["vllm"]["use"] == "serving"
    theirs = tmp_path / "theirs.toml"
    theirs.write_bytes(file.read_bytes() + b"\n")  # of somebody else: the same words, another file
    (other,) = api.show("calibrations", str(theirs))
    assert other["file"] == str(theirs)
    assert other["sha256"] != row["sha256"]
    theirs.write_text("matmul = 'fast'\n")
    with pytest.raises(UserError):
        api.show("calibrations", str(theirs))
    with pytest.raises(UserError, match="unknown calibration"):
        api.show("calibrations", "nosuch")
