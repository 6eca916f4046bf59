"""Description: an architecture file (data/architectures/MODEL_TYPE.toml) with everything that it inherits.

like = "llama"                 the files whose tables it extends: one name, or a list of which later ones win
family = "moe"                 the kind of model, for tables
gguf = "qwen3moe"              llama.cpp's name for it (data/gguf)
refuse = "..."                 why models of this type are not counted
nulls = ["head_dim"]           whole numbers that may be absent or null
lists = ["layer_types"]        lists that may be absent or null, which is the same as empty
tables = ["attn_config"]       tables within that may be absent or null
indices = ["mlp_only_layers"]  lists of layer numbers
each = ["intermediate_size"]   whole numbers that may also be a list with one per layer
autos = ["mamba_d_head"]       whole numbers that may also be 'auto', which is the same as null
text = "qwen3"                 a type with a language model within: that one's type, where its table does not state it
text_key = "thinker_config"    the table of the language model, where it is not text_config
ties = "outer"                 whose tie_word_embeddings decides: outer, inner, either (one is enough) or never
[synonyms]                     other names of a key, as transformers' attribute_map has them
[sizes]                        keys that a config.json must state; the values are those transformers takes within a larger config
[defaults]                     what transformers takes for any other key that is omitted
[words]                        per key of one word per layer: the words that are known
[limits]                       per key, the largest number allowed: an expression
[[multiples]]                  {large = "...", small = "...", rule = "..."}
[let]                          names, most of them fields of Decoder, as expressions of keys and of each other
[embedding] [head]             Ops beside the usual ones
[blocks.NAME]                  Ops of a block: 'base' is a block that is extended, every other key the name of an Op
[shown]                        hyperparameters for the table
[modules]                      per Op that is a linear layer, its name in transformers; Ops with the same name are one layer there
"""

import re
from collections.abc import Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from meshwise.catalogue import files
from meshwise.errors import UserError, quoted

FOLDER = "architectures"
_TABLES = ("synonyms", "sizes", "defaults", "words", "limits", "let", "embedding", "head", "shown", "modules")
_LISTS = ("nulls", "lists", "tables", "indices", "autos", "each")
_WORDS = ("family", "gguf", "refuse", "text", "text_key", "ties")
ROOT = "_decoder"  # the file that every other one is like
MAX_LIKE_CHAIN = 12  # no chain of `like` is longer: a longer one is a circle

Table = Mapping[str, Any]


@dataclass(frozen=True)
class Description:
    """One type of model, with what its file inherits already merged in."""

    name: str
    words: Mapping[str, str]
    tables: Mapping[str, Table]
    lists: Mapping[str, frozenset[str]]
    blocks: Mapping[str, Table]
    multiples: tuple[Table, ...]
    checks: tuple[Table, ...]

    @property
    def family(self) -> str:
        return self.words.get("family", "decoder")

    @property
    def refusal(self) -> str:
        """Why models of this type are not counted; empty for those that are."""
        return self.words.get("refuse", "")


class Types(Set[str]):
    """The model types that have an architecture file. The folders are only listed where all types are asked for."""

    def __contains__(self, item: object) -> bool:
        return isinstance(item, str) and not item.startswith("_") and _path(item) is not None

    def __iter__(self) -> Iterator[str]:
        return (name for name in files.files(FOLDER, ".toml") if not name.startswith("_"))

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _path(name: str) -> Path | None:
    """Return the architecture file of a name, from the user's own folder first. Names with '_' in front are parts that types share. The
    folders are not listed: they hold hundreds of files, of which a model needs three or four."""
    if not re.fullmatch(r"[\w.-]{1,100}", name):
        return None
    paths = (folder / FOLDER / f"{name}.toml" for folder in (files.user_folder(), files.BUILT_IN))
    return next((path for path in paths if path.is_file()), None)


@files.cached
def describe(model_type: str) -> Description:
    """Read the architecture file of a type, and the files that it is like."""
    chain: dict[str, Table] = {}
    _collect(model_type, chain, 0)
    return _merge(model_type, list(chain.values()))


def _collect(name: str, chain: dict[str, Table], depth: int) -> None:
    """Add a file after everything that it is like, so that its own tables win. A file that several are like is added once."""
    path = _path(name)
    if path is None or depth > MAX_LIKE_CHAIN:
        reason = "is like itself" if path else "does not exist"
        raise UserError(f"architectures/{name}.toml {reason}")
    table = files.table_of(path)
    like = table.get("like", ROOT)
    for parent in [like] if isinstance(like, str) else cast(list[str], like):
        if parent != name and parent not in chain:
            _collect(parent, chain, depth + 1)
    chain[name] = table


def _merge(name: str, chain: list[Table]) -> Description:
    tables: dict[str, dict[str, Any]] = {key: {} for key in _TABLES}
    lists: dict[str, set[str]] = {key: set() for key in _LISTS}
    words: dict[str, str] = {}
    blocks: dict[str, dict[str, Any]] = {}
    multiples: dict[str, Table] = {}
    checks: dict[str, Table] = {}
    for table in chain:
        for key in ("sizes", "defaults"):
            for other in ("sizes", "defaults"):
                tables[other] = {k: v for k, v in tables[other].items() if k not in table.get(key, {})}
        for key in _LISTS:
            listed = set(table.get(key, ()))
            lists = {other: known - listed for other, known in lists.items()}
            lists[key] |= listed
            for stated in ("sizes", "defaults") if key not in ("each", "autos") else ():
                tables[stated] = {k: v for k, v in tables[stated].items() if k not in listed}
        stated_now = {**table.get("sizes", {}), **table.get("defaults", {})}
        lists = {key: known if key in ("each", "autos") else known - stated_now.keys() for key, known in lists.items()}
        for key in _TABLES:
            tables[key] |= table.get(key, {})
        for block, rows in table.get("blocks", {}).items():
            blocks[block] = dict(rows) if "base" in rows else blocks.get(block, {}) | dict(rows)
        words |= {key: str(table[key]) for key in _WORDS if key in table}
        words["gguf"] = str(table.get("gguf", ""))  # a type that is like another is not stored like it
        multiples |= {rule["rule"]: rule for rule in table.get("multiples", ())}
        checks |= {rule["otherwise"]: rule for rule in table.get("checks", ())}
        unknown = table.keys() - {*_TABLES, *_LISTS, *_WORDS, "like", "blocks", "multiples", "checks"}
        if unknown:
            raise UserError(f"architectures/{name}.toml: unknown key {quoted(min(unknown))}")
    known = {key: frozenset(names) for key, names in lists.items()}
    return Description(name, words, tables, known, blocks, tuple(multiples.values()), tuple(checks.values()))
