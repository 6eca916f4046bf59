"""The built-in presets, each built once per process."""

from functools import cache

from meshwise.catalogue.files import BUILT_IN
from meshwise.models.find import values_of
from meshwise.models.model import Model, build

PRESETS = {path.name.removesuffix(".json"): path for path in sorted((BUILT_IN / "models").glob("*.json"))}


@cache
def preset(name: str) -> Model:
    """Return a built-in preset as a Model."""
    return build(values_of(PRESETS[name]), name, "")
