"""Run Gluon kernels on the CPU: their Python is executed once per program, with torch in place of Gluon's language.

Triton's own interpreter does not know Gluon. Layouts are ignored here (the compiler checks them): this checks the values of every read,
product and store.
"""

import types
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any

import torch
from torch import Tensor


class Pointer:
    """A place, or a tensor of places, in a tensor's memory."""

    def __init__(self, memory: Tensor, at: Any) -> None:
        self.memory, self.at = memory, at
        self.dtype = types.SimpleNamespace(element_ty=memory.dtype)

    def __add__(self, more: Any) -> "Pointer":
        return Pointer(self.memory, self.at + more)


class Shared:
    """A matrix in shared memory, or a view of one."""

    def __init__(self, values: Tensor) -> None:
        self.values = values
        self.shape = list(values.shape)

    def store(self, tile: Tensor) -> None:
        assert tile.dtype == self.values.dtype
        self.values.copy_(tile)

    def load(self, layout: object) -> Tensor:
        return self.values.clone()

    def permute(self, order: tuple[int, ...]) -> "Shared":
        return Shared(self.values.permute(order))

    def slice(self, start: int, length: int, dim: int = 0) -> "Shared":
        return Shared(self.values.narrow(dim, start, length))


def load(at: Pointer) -> Tensor:
    return at.memory[at.at]


def store(at: Pointer, value: Tensor) -> None:
    assert value.dtype == at.memory.dtype
    assert value.numel() == torch.as_tensor(at.at).numel()
    at.memory[at.at] = value


def copy(into: Shared, at: Pointer) -> None:
    into.store(load(at))


def mma(a: Tensor, b: Tensor, total: Tensor) -> Tensor:
    assert a.dtype == b.dtype
    return total + a.float() @ b.float()


def reduce(several: tuple[Tensor, ...], axis: int, add: object) -> tuple[Tensor, ...]:
    return tuple(one.sum(axis) for one in several)


def inline(text: str, constraints: str, given: list[Tensor], **options: object) -> Tensor:
    assert text.startswith("rcp.approx")
    return 1 / given[0]


def count(first: int, last: int, **options: object) -> Iterator[Tensor]:
    return (torch.tensor(i) for i in range(int(first), int(last)))


def layout(*sizes: object, **options: object) -> None:
    return None


def language(program: tuple[int, ...]) -> types.SimpleNamespace:
    """Return what kernels call `gl`, for one program of a grid."""
    kinds = ("NVMMADistributedLayout", "DotOperandLayout", "SwizzledSharedLayout", "BlockedLayout", "SliceLayout")
    return types.SimpleNamespace(
        load=load, store=store, reduce=reduce, inline_asm_elementwise=inline, static_range=range, where=torch.where, exp2=torch.exp2,
        rsqrt=torch.rsqrt,
        float32=torch.float32, int32=torch.int32, int64=torch.int64, constexpr=lambda value: value,
        arange=lambda first, last, layout: torch.arange(first, last), program_id=lambda axis: torch.tensor(program[axis]),
        allocate_shared_memory=lambda dtype, shape, layout: Shared(torch.full(shape, float("nan"), dtype=dtype)),
        zeros=lambda shape, dtype, layout: torch.zeros(shape, dtype=dtype), sum=lambda x, axis: x.sum(axis),
        convert_layout=lambda tile, layout: tile, **dict.fromkeys(kinds, layout),
    )  # fmt: skip


NOTHING = types.SimpleNamespace(commit_group=layout, wait_group=layout)


def on_cpu(kernel: Any, program: tuple[int, ...]) -> Callable[..., Any]:
    """Return a kernel's Python function, and all it calls, with `language` in place of Gluon's."""
    function = kernel.fn
    names: dict[str, Any] = {}
    for name, value in function.__globals__.items():
        if name == "gl":
            names[name] = language(program)
        elif name == "tl":
            names[name] = types.SimpleNamespace(range=count)
        elif name == "mma_v2":
            names[name] = mma
        elif name == "async_copy":
            names[name] = NOTHING
        elif name == "start_copy":
            names[name] = copy
        elif hasattr(value, "fn") and callable(value.fn):
            names[name] = late(value, program)
        else:
            names[name] = getattr(value, "value", value)
    return types.FunctionType(function.__code__, names, function.__name__, function.__defaults__)


def late(kernel: Any, program: tuple[int, ...]) -> Callable[..., Any]:
    """Convert a function when it is called: helpers call each other."""
    return lambda *given, **named: on_cpu(kernel, program)(*given, **named)


class OnCPU:
    """A kernel that `kernel[grid](...)` runs on the CPU."""

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., None]:
        def run(*given: Any, num_warps: int, maxnreg: int = 0, **constants: int) -> None:
            arguments = [Pointer(one.view(-1), 0) if isinstance(one, Tensor) else torch.tensor(one) for one in given]
            for program in product(*map(range, grid)):
                on_cpu(self.kernel, program)(*arguments, **constants)

        return run
