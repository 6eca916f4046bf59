"""Parameters out of HF's stored tensors, and back: packed, transposed and reordered matrices."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from meshwise.workers.trainer.contract.models.tensors import Part, Stored


class Conversion:
    """The stored tensors of a model, found by the parameters in them."""

    def __init__(self, stored: Mapping[str, Stored]) -> None:
        self.stored = stored
        self.places: dict[str, list[tuple[str, int]]] = {}
        """Stored tensors of each parameter, and its place among their parts; several for a stack of experts."""
        for name, tensor in stored.items():
            for place, part in enumerate(tensor.parts):
                self.places.setdefault(part.parameter, []).append((name, place))

    def read(self, parameter: str, find: Callable[[str], Tensor]) -> Tensor:
        """Return a parameter; `find` returns a stored tensor by its name."""
        matrices: dict[int | None, list[Tensor]] = {}
        for name, place in self.places[parameter]:
            stored = self.stored[name]
            matrices.setdefault(stored.parts[place].index, []).append(extract(stored, place, find(name)))
        whole = [torch.cat(rows) if len(rows) > 1 else rows[0] for rows in matrices.values()]
        return whole[0] if None in matrices else torch.stack(whole)

    def write(self, parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the stored tensors that these parameters fill."""
        filled = {
            name: stored for name, stored in self.stored.items() if all(part.parameter in parameters for part in stored.parts)
        }
        return {name: pack(stored, parameters) for name, stored in filled.items()}


def extract(stored: Stored, place: int, tensor: Tensor) -> Tensor:
    """Return one part of a stored tensor, in the model's order."""
    tensor, part = tensor.T if stored.transposed else tensor, stored.parts[place]
    if stored.head_dim:
        tensor = tensor.unflatten(0, (-1, len(stored.parts), stored.head_dim))[:, place].flatten(0, 1)
    elif len(stored.parts) > 1:
        tensor = tensor.split([each.shape[0] for each in stored.parts])[place]
    return _reordered(tensor, part.order)


def pack(stored: Stored, parameters: Mapping[str, Tensor]) -> Tensor:
    parts = [_reordered(_whole(part, parameters), _inverse(part.order)) for part in stored.parts]
    if stored.head_dim:
        packed = torch.stack([part.unflatten(0, (-1, stored.head_dim)) for part in parts], 1).flatten(0, 2)
    else:
        packed = torch.cat(parts) if len(parts) > 1 else parts[0]
    return (packed.T if stored.transposed else packed).contiguous()


def _whole(part: Part, parameters: Mapping[str, Tensor]) -> Tensor:
    parameter = parameters[part.parameter]
    return parameter if part.index is None else parameter[part.index, part.first : part.first + part.shape[0]]


def _reordered(tensor: Tensor, order: tuple[int, ...]) -> Tensor:
    """Return rows of each head in another order: row i of the result is row order[i]."""
    if not order:
        return tensor
    return tensor.unflatten(0, (-1, len(order)))[:, list(order)].flatten(0, 1)


def _inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(range(len(order)), key=order.__getitem__))
