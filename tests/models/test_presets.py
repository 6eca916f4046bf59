"""The models that come with the package."""

from typing import Any, cast

from meshwise.catalogue.files import squeeze
from meshwise.models.find import find_model, values_of
from support.every import check_every
from support.presets import PRESETS

CONFIGS = {name: values_of(path) for name, path in PRESETS.items()}


def own(name: str) -> dict[str, Any]:
    return cast(dict[str, Any], CONFIGS[name]["meshwise"])


def test_there_are_at_least_forty_presets() -> None:
    assert len(PRESETS) >= 40


def test_every_preset_loads_under_its_name_and_states_its_source() -> None:
    def check(name: str) -> None:
        model = find_model(name)
        assert (model.name, model.notes) == (name, ())
        assert model.params > 0
        assert model.source == own(name)["source"] != ""

    check_every(check, ((name,) for name in PRESETS))


def test_no_two_presets_have_names_that_differ_only_in_punctuation() -> None:
    assert len({squeeze(name) for name in PRESETS}) == len(PRESETS)


def test_a_hub_id_belongs_to_one_preset() -> None:
    claims = [
        (hub_id.lower(), name) for name in PRESETS for hub_id in {CONFIGS[name].get("_name_or_path"), *own(name)["ids"]} if hub_id
    ]
    owners = dict(claims)
    assert sorted(claims) == sorted(owners.items())
