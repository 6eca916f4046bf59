"""Models that an architecture file describes (data/architectures): most of transformers' decoders. A new type is one file of data."""

import re
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, cast

from meshwise.errors import UserError, nearest, quoted
from meshwise.models.architecture import Architecture
from meshwise.models.config import MAX_LAYERS, MAX_SIZE, Config
from meshwise.models.families.assembly import BUILDERS, Ends, assemble_layers, flag, is_plain
from meshwise.models.families.blocks import Block, Body, Decoder
from meshwise.models.families.description import Description, Types, describe
from meshwise.models.families.expression import CONSTANTS, FUNCTIONS, parse
from meshwise.models.families.keys import Keys
from meshwise.models.families.rows import CONSTRUCTORS, SizeError, named
from meshwise.models.op import Op

model_types = Types()
TOWER = "tower"  # the kind of types that turn pictures into tokens of a language model


def __getattr__(name: str) -> tuple[Architecture, ...]:
    """Return `gguf`, every architecture of llama.cpp that is described; read from its files only where it is asked for."""
    if name == "gguf":
        from meshwise.models.families import stored

        return stored.every()
    raise AttributeError(name)


def stored_as(model_type: str) -> Architecture | None:
    """Return how llama.cpp stores a type; None where it does not run it."""
    from meshwise.models.families import stored

    known = stored.load(describe(model_type).words.get("gguf", ""))
    return next((one for one in known if model_type in one.model_types), None)


def module_names(model_type: str) -> Mapping[str, str]:
    """Return the names of linear layers in transformers by Op."""
    return describe(model_type).tables["modules"]


def read(config: Config) -> Body:
    description = describe(config.model_type)
    reason = description.refusal or (description.family == TOWER and "it is a tower beside a language model, and none by itself")
    if reason:
        raise UserError(f"{config.where}: model_type {quoted(config.model_type)} is not counted: {reason}")
    body = Reader(description, config).body()
    family = description.family
    return replace(body, family="decoder" if family == "dense" and not is_plain(body) else family)


DEFAULT_PATCHES = 1024  # patches of a picture where a tower takes pictures of any size: 448 x 448 in patches of 14 x 14


def tower_sizes(config: Config) -> tuple[int, int, int, int] | None:
    """Return the parameters, width, layers and patches per picture of a tower; None where its type is not described. Published tables
    often state the outer type, such as qwen2_5_vl for qwen2_5_vl_vision."""
    stated = config.values.get("model_type")
    for kind in (f"{stated}_vision", stated) if isinstance(stated, str) else ():
        if kind in model_types and describe(kind).family == TOWER:
            body = Reader(describe(kind), Config(config.values, config.where, nested=True)).body()
            side, patch = (config.values.get(key) for key in ("image_size", "patch_size"))
            whole = isinstance(side, int) and isinstance(patch, int) and 0 < patch <= side
            patches = (side // patch) ** 2 if whole and isinstance(side, int) and isinstance(patch, int) else DEFAULT_PATCHES
            params = sum(op.params * op.count for _, op in body.ops)
            return params, body.decoder.hidden, body.decoder.layers, patches
    return None


def decoder_of(config: Config, model_type: str) -> Decoder:
    """Return the sizes of a config as those of a described type, for families in Python that differ from one in a few blocks."""
    return Reader(describe(model_type), config).body().decoder


class Reader:
    """Evaluates the expressions of a description over the keys of one config. A name is looked up, in this order, among the names of
    [let], the keys of the config and the functions. Within its own expression a name of [let] means the key: head_dim = "head_dim or
    hidden // heads". What depends on the layer `i` is evaluated for every layer; everything else once."""

    def __init__(self, description: Description, config: Config) -> None:
        self.description = description
        self.config = config
        self.keys = Keys(description, config, self.__getitem__, self.value)
        self.constant: dict[str, Any] = {}
        self.of_layer: dict[str, Any] = {}
        self.evaluating: list[str] = []
        self.layer = 0
        self.layered = False
        self.built: dict[str, Block] = {}
        self.by_name: dict[str, list[tuple[Op, ...]]] = {}

    def __getitem__(self, name: str) -> Any:
        """Return the value of a name: `eval` reads names through this."""
        own = name in self.evaluating
        if name in self.constant and not own:
            return self.constant[name]
        if name == "i":
            self.layered = True
            return self.layer
        if name in self.of_layer and not own:
            self.layered = True
            return self.of_layer[name]
        if name in self.description.tables["let"] and not own:
            return self._let(name)
        if name in BUILDERS:
            return BUILDERS[name](self)
        return _KNOWN[name] if name in _KNOWN else self.keys.read(name)

    def _let(self, name: str) -> Any:
        before, self.layered = self.layered, False
        self.evaluating.append(name)
        try:
            value = self.value(self.description.tables["let"][name])
        finally:
            self.evaluating.pop()
        (self.of_layer if self.layered else self.constant)[name] = value
        self.layered = self.layered or before
        return value

    def value(self, row: Any) -> Any:
        """Return the value of an expression; anything but text is its own value."""
        if not isinstance(row, str):
            return row
        expression = parse(row, self.description.name)
        try:
            return expression.value(cast(Mapping[str, Any], self))
        except (ArithmeticError, TypeError, ValueError, LookupError, SizeError) as error:
            raise self._at_fault(row, error) from None

    def _at_fault(self, row: str, error: Exception) -> UserError:
        """Return the error for an expression without a value, with the key that most likely is the reason."""
        where, found = self.config.where, self._keys_of(row, frozenset())
        for key, value in found.items():
            if value is None:
                stated = key in self.config.values
                hint = "" if stated else nearest(key, map(str, self.config.values))
                return UserError(f"{where}: '{key}' is {'null' if stated else 'missing'}; expected a whole number{hint}")
        for key, value in found.items():
            if type(value) is int and not value:
                return UserError(f"{where}: '{key}' is 0; expected a whole number from 1 to {MAX_SIZE}")
        listed = next((key for key, value in found.items() if isinstance(value, list | tuple)), None)
        if isinstance(error, LookupError) and listed:
            return UserError(f"{where}: '{listed}' is {quoted(found[listed])}; expected one entry per layer")
        shown = ", ".join(f"{key} = {quoted(value)}" for key, value in list(found.items())[:4])
        return UserError(f"{where}: the keys do not fit together ({shown or row})")

    def _keys_of(self, row: str, seen: frozenset[str]) -> dict[str, Any]:
        """Return the keys of the config that an expression reads, itself or through [let], with their values."""
        found: dict[str, Any] = {}
        let = self.description.tables["let"]
        for name in sorted(parse(row).names - seen):
            if name in let and isinstance(let[name], str):
                found |= self._keys_of(let[name], seen | {name})
            elif name not in let and name != "i" and name not in _KNOWN and name not in BUILDERS:
                found[name] = self.keys.plain(name)
        return found

    def body(self) -> Body:
        """Return the whole model."""
        layers = self["layers"]
        if isinstance(layers, bool) or not isinstance(layers, int) or not 1 <= layers <= MAX_LAYERS:
            raise UserError(f"{self.config.where}: {quoted(layers)} layers; expected a whole number from 1 to {MAX_LAYERS}")
        self._check()
        stack: list[list[Block]] = []
        windows: list[int] = []
        for i in range(layers):
            self.layer, self.of_layer = i, {}
            stack.append([self._block(name) for name in self._blocks_of_layer()])
            windows.append(self["window"] or 0)
        d = self._decoder(layers, tuple(windows) if any(windows) else ())
        tables = self.description.tables
        shown = tuple((name, value) for name, row in tables["shown"].items() if (value := self.value(row)))
        before, after = tables["embedding"], tables["head"]
        ends = Ends(self._rows(before), self._rows(after), frozenset({*before, *after}))
        return assemble_layers(d, stack, ends, shown)

    def _check(self) -> None:
        """Refuse sizes that contradict each other."""
        for rule in self.description.multiples:
            large, small = self.value(rule["large"]), self.value(rule["small"])
            if large and small:
                self.config.require_multiple(large, small, rule["rule"])
        for check in self.description.checks:
            if not self.value(check["that"]):
                words = re.sub(r"\{(\w+)\}", lambda name: str(self[name[1]]), check["otherwise"])
                raise UserError(f"{self.config.where}: {words}")

    def _blocks_of_layer(self) -> list[str]:
        chosen: list[str] = []
        for place in ("mixer", "ffw"):
            value = self[place]
            chosen += [name for name in ([value] if isinstance(value, str) else value or ()) if name]
        return chosen

    def _decoder(self, layers: int, windows: tuple[int, ...]) -> Decoder:
        self.layer, self.of_layer = 0, {}
        let = self.description.tables["let"]
        names = [field.name for field in fields(Decoder) if field.name in let and field.name != "layers"]
        values: dict[str, Any] = {name: flag(name, self[name]) for name in names}
        for name in ("hidden", "vocab"):
            if type(values[name]) is not int or values[name] < 1:
                raise UserError(f"{self.config.where}: the {name} size is {quoted(values[name])}; expected a whole number from 1")
        values |= {"layers": layers, "windows": windows}
        return Decoder(**values)

    def _block(self, name: str) -> Block:
        """Return a block of the current layer; one that does not depend on the layer is built once."""
        if name in self.built:
            return self.built[name]
        rows = self.description.blocks.get(name)
        if rows is None:
            known = ", ".join(sorted(self.description.blocks))
            raise UserError(f"{self.config.where}: layer {self.layer} is {quoted(name)}; expected one of {known}")
        before, self.layered = self.layered, False
        block = self._renamed(self.from_rows(name, rows))
        if not self.layered:
            self.built[name] = block
        self.layered = self.layered or before
        return block

    def from_rows(self, name: str, rows: Mapping[str, Any]) -> Block:
        """Return the block that rows of an architecture file describe."""
        base: Block = (self.value(rows["base"]) if "base" in rows else None) or Block(name, ())
        ops = {op.name: op for op in base.ops}
        for key, row in rows.items():
            if key != "base":
                ops.pop(key, None)
                ops |= {op.name: op for op in self._rows({key: row})}
        return Block(base.name, tuple(ops.values()))

    def _renamed(self, block: Block) -> Block:
        """Return the block under a name of its own where another block with other Ops already has its name."""
        known = self.by_name.setdefault(block.name, [])
        if block.ops not in known:
            known.append(block.ops)
        number = known.index(block.ops)
        return Block(f"{block.name}.{number + 1}", block.ops) if number else block

    def _rows(self, rows: Mapping[str, Any]) -> list[Op]:
        return [op for name, row in rows.items() for op in named(name, self.value(row))]


_KNOWN: dict[str, Any] = {**CONSTANTS, **FUNCTIONS, **CONSTRUCTORS}
