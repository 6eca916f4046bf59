"""Find the model that a name means: a preset, a Hugging Face id, a config.json or its folder, a .gguf file, or an Ollama tag."""

import math
import os
import re
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, cast

from meshwise.catalogue import files
from meshwise.errors import UserError, did_you_mean, quoted
from meshwise.models.config import as_list
from meshwise.models.model import Model, build, family_of

if TYPE_CHECKING:
    from meshwise.models import ollama

HUB = "https://huggingface.co"
SAME_SIZE_SHARE = 0.03
"""Largest difference in parameters at which a family and a size name a preset: sizes are stated with two or three digits."""


_alone: ContextVar[tuple[str, ...] | None] = ContextVar("catalogue_alone", default=None)


@contextmanager
def catalogue_alone(*but: str) -> Generator[None]:
    """Find names that strangers wrote in the catalogue alone: no file is read for them, `but` for those of the user; no hub is asked."""
    token = _alone.set(but)
    try:
        yield
    finally:
        _alone.reset(token)


def find_model(name: str, *, hub: bool = True) -> Model:
    """Return the model of a name: a preset, a file, the hub's cache, a preset with more words, the hub, or an Ollama tag, in this order."""
    _check_printable(name)
    if name.lower().endswith(".gguf") and (_is_here(name) or from_words(name) is None):
        from meshwise.models.gguf import header

        return header.read(_readable(name))
    values, label, source = find_values(name, hub=hub)
    model = _from_tensors(name, values, label, source) or build(values, label, source)
    return replace(model, notes=(*model.notes, *_taken_as(name, label)), hub_id=_asked_id(name, label))


def _from_tensors(name: str, values: dict[str, object], label: str, source: str) -> Model | None:
    """Return the model of a folder with weights whose type nobody has described, counted from them; None in every other case."""
    kind = values.get("model_type")
    folder = Path(name) if os.path.isdir(name) else Path(name).parent
    if not _is_here(name) or not isinstance(kind, str) or family_of(kind) is not None or "text_config" in values:
        return None
    from meshwise.models.guess import nearest
    from meshwise.models.safetensors import elements_of

    found = elements_of(folder)
    return nearest(values, tuple(found.values()), label, source) if found else None


def _taken_as(name: str, label: str) -> tuple[str, ...]:
    """Return the note about a name that was read as a preset."""
    if files.squeeze(label) == files.squeeze(name) or label not in presets() or find_preset(name) is not None:
        return ()
    kind = "the Ollama tag " if ":" in name else ""
    there = " (the file itself is not here)" if name.lower().endswith(".gguf") else ""
    return (f"{kind}{quoted(name.strip())[1:-1]} is taken as the preset {label}{there}",)


def find_values(name: str, *, hub: bool = True) -> tuple[dict[str, object], str, str]:
    """Return the keys of the config.json that `name` means, the model's label, and where the config is from."""
    _check_printable(name)
    preset = find_preset(name)
    if preset is not None:
        values = values_of(preset)
        return values, preset.name.removesuffix(".json"), str(_own_table(values).get("source", ""))
    if name.endswith(".json") or _is_here(name):
        folder = os.path.isdir(_readable(name))
        file = Path(name, "config.json") if folder else Path(name)
        if folder and not file.is_file():
            raise UserError(f"the folder {quoted(name)} holds no config.json")
        return values_of(file), _label(file), str(file)
    hub_id = name.count("/") == 1 and all(name.split("/")) and not name.lower().endswith(".gguf")
    cached = _in_cache(name) if hub_id else None
    if cached is not None:
        return values_of(cached), name, f"{HUB}/{name}"
    worded = from_words(name)
    if worded is not None:
        return find_values(worded[0])
    if hub_id and hub and _alone.get() is None:
        return values_of(_from_hub(name)), name, f"{HUB}/{name}"
    tagged = from_ollama(name)
    if tagged is not None:
        return find_values(tagged[0])
    raise UserError(_unknown(name))


def _may_be_read(name: str) -> bool:
    known = _alone.get()
    return known is None or name in known


def _is_here(name: str) -> bool:
    # os.path rather than Path: it returns False for an impossible file name, such as one of 10,000 letters.
    return _may_be_read(name) and os.path.exists(name)


def _readable(name: str) -> Path:
    if not _may_be_read(name):
        raise UserError(f"{quoted(name)}: no file is read here; use the command line for one")
    return Path(name)


def _check_printable(name: str) -> None:
    """Refuse the name of a file with line breaks or control characters: it is printed, and written into scripts."""
    if not name.isprintable():
        raise UserError(f"the model {quoted(name)}: line breaks and control characters in a name are refused; rename it")


def named(text: str, params: float = math.nan) -> Model | None:
    """Return the model that a run names, as people write it: 'Llama 3 70B Chat', 'DeepSeekV3 (w/o MTP)', 'GLM-4.6-UD-Q4_K_XL', a path; or
    the one of its family (first word) with `params` parameters. None for an unknown name. Nothing is downloaded."""
    found = _named(text) if text else None
    return found if found or not text or not params > 0 else _of_size(text, params)


@cache
def _named(text: str) -> Model | None:
    if text.endswith(".json") or (text.endswith(".gguf") and _is_here(text)) or find_preset(text) is not None:
        return find_model(text)
    try:
        found = from_words(text) or from_ollama(text)
    except UserError:  # a tag that could be several
        return None
    return find_model(found[0]) if found else None


@cache
def _of_size(text: str, params: float) -> Model | None:
    """Return the preset of the same family (first word) whose size is closest and within SAME_SIZE_SHARE."""
    first = re.match(r"[a-z]+", text.lower())
    word = first[0].removesuffix("forcausallm").removesuffix("lmheadmodel") if first else ""
    if len(word) < 3:
        return None
    sizes = {key: abs(find_model(key).params / params - 1) for key in presets() if key.startswith(word)}
    near = {key: gap for key, gap in sizes.items() if gap < SAME_SIZE_SHARE}
    return find_model(min(near, key=lambda key: near[key])) if near else None


def _unknown(name: str) -> str:
    """Return the error for a name that means nothing: the nearest presets, or how to give a model that is not one."""
    model, colon, _ = name.rpartition(":")
    if colon and find_preset(model):
        return f"unknown model {quoted(name)}: a weight format only applies to serving; write '{model}' here"
    close = files.similar(name, presets())
    word = files.leading_word(close[0] if close else name)
    listing = f"meshwise show models {word}" if len(word) > 1 and files.matching(word, presets()) else "meshwise show models"
    if close:
        return f"unknown model {quoted(name)}{did_you_mean(close)} ({listing}, or give a config.json or .gguf)"
    return (
        f"unknown model {quoted(name)}: no preset has a similar name ({listing}); "
        "give its config.json, a .gguf file, or its Hugging Face id such as meta-llama/Llama-3.3-70B-Instruct"
    )


def _label(file: Path) -> str:
    """Return a name for a config.json, which states none: the name of its folder."""
    folder = file.resolve().parent.name
    _check_printable(folder)
    return folder if file.name == "config.json" and folder else file.name


def presets() -> dict[str, Path]:
    """Return the files of all presets by name."""
    return files.files("models", ".json")


def filter_presets(words: str) -> list[str]:
    """Return the preset that is exactly `words`, else all whose names contain every word."""
    return files.matching(words, presets())


def find_preset(name: str) -> Path | None:
    """Return the file of a preset, by its name or by one of the HF ids that its file lists, with or without the publisher."""
    if "/" in name:
        return hub_ids().get(name.lower())
    known = presets()
    if name in known:
        return known[name]
    plain = files.squeeze(name)
    named = next((path for stem, path in known.items() if files.squeeze(stem) == plain), None)
    return named or (folders().get(plain) if len(plain) > 3 and re.search(r"[a-z]", plain) else None)


@files.cached
def folders() -> dict[str, Path]:
    """Return the preset of every repository folder: HF ids without their publisher, squeezed. Presets' own names come first."""
    own = {files.squeeze(stem): path for stem, path in presets().items()}
    return {files.squeeze(hub_id.partition("/")[2] or hub_id): path for hub_id, path in hub_ids().items()} | own


def from_words(text: str) -> tuple[str, str] | None:
    """Return a preset's name or folder and the weight format (or '') of a name with more words, such as 'unsloth/GLM-4.6-GGUF'; or None."""
    from meshwise.models import names

    found = None if ":" in (text := text.replace("-GGUF:", "-GGUF-")) else names.read(text, folders())
    return found and (found.known, found.format)


def from_ollama(text: str) -> tuple[str, str] | None:
    """Return the preset and the weight format (or '') of an Ollama tag such as 'llama3.3:70b'; None where `text` is no tag. A tag that is
    no preset's, or that could be several, is refused with the presets to choose from."""
    if ":" not in text:
        return None
    from meshwise.models import ollama

    tag = ollama.parse(text)
    if tag is None:
        return None
    known = presets()
    fitting = ollama.fitting(tag, known, lambda preset: build(values_of(known[preset]), preset, "").params)
    if len(fitting) != 1:
        fitting = _fitting_folders(tag) or fitting
    if len(fitting) == 1:
        return fitting[0], tag.format
    if not fitting and not tag.sized and "latest" not in tag.words:
        return None
    near = did_you_mean(fitting or files.similar(tag.name, known))
    missing = "no preset has that name and size" if tag.sized else "it states no size"
    reason = "several presets have that name and size" if fitting else missing
    raise UserError(
        f"{quoted(text)} looks like an Ollama tag, but {reason}{near} "
        "(write PRESET or PRESET:FORMAT, such as llama-3.3-70b:q4_k_m, or give a config.json or .gguf)"
    )


def _fitting_folders(tag: "ollama.Tag") -> list[str]:
    """Return for each preset its folder that fits a tag, such as 'qwen3-coder-30b-a3b-instruct' for 'qwen3-coder:30b'."""
    from meshwise.models import ollama

    stems = {hub_id.partition("/")[2] or hub_id: path.name.removesuffix(".json") for hub_id, path in hub_ids().items()}
    found = ollama.fitting(tag, stems, lambda stem: build(values_of(presets()[stems[stem]]), stem, "").params)
    return sorted({stems[stem]: stem for stem in found}.values())


def hub_id(name: str) -> str:
    """Return the HF id that a name means: of its preset's ids the one spelled like it, or else the first; the name itself without any."""
    preset, plain = find_preset(name), files.squeeze(name.rpartition("/")[2])
    ids = _ids(values_of(preset)) if preset else []
    return next((one for one in ids if files.squeeze(one.rpartition("/")[2]) == plain), (ids or [name])[0])


def _asked_id(name: str, label: str) -> str:
    """Return the HF id of a model that was found under `label`: Qwen/Qwen2.5-Coder-32B-Instruct for 'qwen2.5-coder:32b'."""
    if label in presets() and find_preset(name) is None:
        name = (from_words(name) or from_ollama(name) or (label,))[0]
    return hub_id(name if label in presets() else label)


def _ids(values: dict[str, object]) -> list[str]:
    """Return the HF ids that a preset lists, the one of its config first."""
    return [one for one in (values.get("_name_or_path"), *as_list(_own_table(values).get("ids"))) if isinstance(one, str) and one]


@files.cached
def hub_ids() -> dict[str, Path]:
    """Return the preset file for every HF id that a preset lists, in lower case."""
    return {hub_id.lower(): path for path in presets().values() for hub_id in _ids(values_of(path))}


def _own_table(values: dict[str, object]) -> dict[str, object]:
    """Return the keys that a preset has in addition to HF's: its source and other ids."""
    table = values.get("meshwise")
    return cast(dict[str, object], table) if isinstance(table, dict) else {}


def values_of(path: Path) -> dict[str, object]:
    """Read the keys of a config.json."""
    values = files.json_of(files.text_of(path), path.name)
    if not isinstance(values, dict):
        raise UserError(f"{path.name}: expected a table of keys as in HF's config.json, found {quoted(values)}")
    return cast(dict[str, object], values)


def _in_cache(hub_id: str) -> Path | None:
    """Return the config.json of a hub id if the local hub cache has it, without a network."""
    folder = os.environ.get("HF_HUB_CACHE") or os.path.join(os.environ.get("HF_HOME") or "~/.cache/huggingface", "hub")
    if not os.path.isdir(os.path.join(os.path.expanduser(folder), f"models--{hub_id.replace('/', '--')}")):
        return None
    import huggingface_hub as hub
    from huggingface_hub.errors import HFValidationError

    try:
        cached = hub.try_to_load_from_cache(hub_id, "config.json")
    except HFValidationError:
        return None
    return Path(cached) if isinstance(cached, str) else None


def _from_hub(hub_id: str) -> Path:
    """Return the path of a config.json from the local hub cache, or download it from the hub."""
    import huggingface_hub as hub
    from huggingface_hub.errors import GatedRepoError, HFValidationError, RemoteEntryNotFoundError, RepositoryNotFoundError

    instead = "give its config.json instead: meshwise count path/to/config.json"
    try:
        cached = hub.try_to_load_from_cache(hub_id, "config.json")
        if isinstance(cached, str):
            return Path(cached)
        # One request with a short timeout first: the download itself retries for half a minute without a network.
        hub.get_hf_file_metadata(hub.hf_hub_url(hub_id, "config.json"), timeout=5)  # pyright: ignore[reportUnknownMemberType]
        return Path(hub.hf_hub_download(hub_id, "config.json"))  # pyright: ignore[reportUnknownMemberType]
    except HFValidationError:
        raise UserError(f"{quoted(hub_id)} is neither a file nor a Hugging Face id such as meta-llama/Meta-Llama-3-70B") from None
    except GatedRepoError:
        raise UserError(f"{hub_id} is gated on the hub: log in with 'hf auth login', or {instead}") from None
    except (RepositoryNotFoundError, RemoteEntryNotFoundError):
        near = did_you_mean(files.similar(hub_id, hub_ids()))
        raise UserError(f"the hub has no {hub_id} with a config.json{near}") from None
    except Exception as error:  # the hub's client has changed its HTTP library before; any other error means no connection
        raise UserError(f"cannot look up {hub_id} on the hub ({type(error).__name__}: no network?); {instead}") from None
