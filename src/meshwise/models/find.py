"""The model that a name means: a preset, a Hugging Face id, a config.json or its folder, or a .gguf file."""

import json
import os
from pathlib import Path
from typing import cast

from meshwise.catalogue import files
from meshwise.errors import UserError, nearest, quoted
from meshwise.models.config import as_list
from meshwise.models.gguf import header
from meshwise.models.model import Model, build

HUB = "https://huggingface.co"


def find_model(name: str) -> Model:
    """The model that `name` means. Built-in knowledge comes first, then files, then the hub's cache, then the hub."""
    if name.lower().endswith(".gguf"):
        return header.read(Path(name))
    values, label, source = find_values(name)
    return build(values, label, source)


def find_values(name: str) -> tuple[dict[str, object], str, str]:
    """The keys of the config.json that `name` means, what to call the model, and where they are from."""
    preset = find_preset(name)
    if preset is not None:
        values = values_of(preset)
        return values, preset.name.removesuffix(".json"), source_of(values)
    # os.path rather than Path: it answers False to a name that no file can have, such as one of 10,000 letters.
    if name.endswith(".json") or os.path.exists(name):
        folder = os.path.isdir(name)
        file = Path(name, "config.json") if folder else Path(name)
        if folder and not file.is_file():
            raise UserError(f"the folder {quoted(name)} holds no config.json")
        return values_of(file), _label(file), str(file)
    if name.count("/") == 1 and all(name.split("/")):
        return values_of(_from_hub(name)), name, f"{HUB}/{name}"
    raise UserError(
        f"unknown model {quoted(name)}{nearest(name, presets())} (meshwise show models, or give a config.json or .gguf)"
    )


def _label(file: Path) -> str:
    """A config.json says nothing of its name; its folder usually does."""
    folder = file.resolve().parent.name
    return folder if file.name == "config.json" and folder else file.name


def presets() -> dict[str, Path]:
    return files.files("models", ".json")


def find_preset(name: str) -> Path | None:
    """A preset by its own name, or by the HF ids that its file lists."""
    if "/" in name:
        return hub_ids().get(name.lower())
    wanted = files.squeeze(name)
    return next((path for stem, path in presets().items() if files.squeeze(stem) == wanted), None)


def hub_id(name: str) -> str:
    """The HF id of a preset; the name itself where it is none."""
    preset = find_preset(name)
    own = values_of(preset).get("_name_or_path") if preset else None
    return own if isinstance(own, str) and own else name


@files.cached
def hub_ids() -> dict[str, Path]:
    """Every HF id that a preset answers to, in lower case."""
    found: dict[str, Path] = {}
    for path in presets().values():
        values = values_of(path)
        own = values.get("_name_or_path")
        for hub_id in (own, *as_list(_own_table(values).get("ids"))):
            if isinstance(hub_id, str) and hub_id:
                found[hub_id.lower()] = path
    return found


def _own_table(values: dict[str, object]) -> dict[str, object]:
    """What a preset says beyond HF's keys: its source and other ids."""
    own = values.get("meshwise")
    return cast(dict[str, object], own) if isinstance(own, dict) else {}


def source_of(values: dict[str, object]) -> str:
    return str(_own_table(values).get("source", ""))


def values_of(path: Path) -> dict[str, object]:
    """The keys of a config.json."""
    try:
        values = json.loads(files.text_of(path))
    except (ValueError, RecursionError) as error:  # ValueError: malformed, truncated, or a number of thousands of digits
        raise UserError(f"{path.name}: not valid JSON: {error}") from None
    if not isinstance(values, dict):
        raise UserError(f"{path.name}: expected a table of keys as in HF's config.json, found {quoted(values)}")
    return cast(dict[str, object], values)


def _from_hub(hub_id: str) -> Path:
    """config.json from the local hub cache, or from the hub."""
    import huggingface_hub as hub
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RemoteEntryNotFoundError, RepositoryNotFoundError

    instead = "give its config.json instead: meshwise count path/to/config.json"
    try:
        cached = hub.try_to_load_from_cache(hub_id, "config.json")
        if isinstance(cached, str):
            return Path(cached)
        # Asked once and with a short patience first: the download itself retries for half a minute when there is no network.
        hub.get_hf_file_metadata(hub.hf_hub_url(hub_id, "config.json"), timeout=5)  # pyright: ignore[reportUnknownMemberType]
        return Path(hub.hf_hub_download(hub_id, "config.json"))  # pyright: ignore[reportUnknownMemberType]
    except HFValidationError:
        raise UserError(f"{quoted(hub_id)} is neither a file nor a Hugging Face id such as meta-llama/Meta-Llama-3-70B") from None
    except GatedRepoError:
        raise UserError(f"{hub_id} is gated on the hub: log in with 'hf auth login', or {instead}") from None
    except (RepositoryNotFoundError, RemoteEntryNotFoundError):
        raise UserError(f"the hub has no {hub_id} with a config.json{nearest(hub_id.lower(), hub_ids())}") from None
    except (
        Exception
    ) as error:  # the hub's client changed its HTTP library before; whatever it raises here, the hub was not reached
        raise UserError(f"cannot look up {hub_id} on the hub ({type(error).__name__}: no network?); {instead}") from None
