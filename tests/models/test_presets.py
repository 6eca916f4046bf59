"""The models that come with the package."""

from typing import Any, cast

import pytest

from meshwise.catalogue.files import BUILT_IN, squeeze
from meshwise.models.find import find_model, values_of

PRESETS = {path.name.removesuffix(".json"): values_of(path) for path in sorted((BUILT_IN / "models").glob("*.json"))}


def own(name: str) -> dict[str, Any]:
    return cast(dict[str, Any], PRESETS[name]["meshwise"])


def test_there_are_forty_or_more() -> None:
    assert len(PRESETS) >= 40


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_loads_under_its_name_and_says_where_it_comes_from(name: str) -> None:
    model = find_model(name)
    assert (model.name, model.notes) == (name, ())
    assert model.params > 0
    assert model.source == own(name)["source"] != ""


def test_no_two_presets_have_names_that_only_punctuation_tells_apart() -> None:
    assert len({squeeze(name) for name in PRESETS}) == len(PRESETS)


def test_a_hub_id_belongs_to_one_preset() -> None:
    claims = [
        (hub_id.lower(), name) for name in PRESETS for hub_id in {PRESETS[name].get("_name_or_path"), *own(name)["ids"]} if hub_id
    ]
    owners = dict(claims)
    assert sorted(claims) == sorted(owners.items())
