"""Whether the kernels support a layer, and if not, why."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false
import importlib.metadata
import importlib.util
import logging
from dataclasses import dataclass
from functools import cache

import torch


@dataclass(frozen=True)
class Limits:
    """The layers that a set of kernels supports."""

    head_sizes: tuple[int, ...]
    mini_batches: tuple[int, ...]
    dtypes: tuple[torch.dtype, ...]
    shared: int = 0  # bytes of shared memory that a program needs
    triton: tuple[int, int] = (3, 0)  # the oldest Triton that has been seen to compile them


LINEAR = Limits((32, 64, 128), (16, 32, 64), (torch.bfloat16, torch.float16, torch.float32))
MLP = Limits((64,), (16,), (torch.bfloat16, torch.float16), shared=160 * 1024, triton=(3, 6))


@cache
def why_no_kernels(device: torch.device, dtype: torch.dtype, head_size: int, mini_batch: int, limits: Limits = LINEAR) -> str:
    """Return why the kernels do not support this layer; empty if they do."""
    if device.type != "cuda":
        return f"they need CUDA, not {device.type}"
    chip = torch.cuda.get_device_properties(device)
    if (chip.major, chip.minor) < (8, 0) or chip.shared_memory_per_block_optin < limits.shared:
        return f"they need an Ampere or later GPU with {limits.shared >> 10} KiB of shared memory; this is {chip.name}"
    if importlib.util.find_spec("triton") is None:
        return "they need triton, which is not installed"
    version = importlib.metadata.version("triton")
    if tuple(map(int, version.split(".")[:2])) < limits.triton:
        return f"they need triton {'.'.join(map(str, limits.triton))} or later; {version} is installed"
    if head_size not in limits.head_sizes:
        return f"they support heads of {', '.join(map(str, limits.head_sizes))} features, not {head_size}"
    if mini_batch not in limits.mini_batches:
        return f"they support mini-batches of {', '.join(map(str, limits.mini_batches))} tokens, not {mini_batch}"
    if dtype not in limits.dtypes:
        names = [str(supported).removeprefix("torch.") for supported in (*limits.dtypes, dtype)]
        return f"they support {', '.join(names[:-1])}, not {names[-1]}"
    return ""


@cache
def use_kernels(device: torch.device, dtype: torch.dtype, head_size: int, mini_batch: int, limits: Limits = LINEAR) -> bool:
    """Return whether to use the kernels. Logs the reason once if a GPU cannot use them."""
    reason = why_no_kernels(device, dtype, head_size, mini_batch, limits)
    if reason and device.type == "cuda":
        logging.getLogger("meshwise").warning("TTT layers run in plain PyTorch instead of Triton kernels: %s", reason)
    return not reason


def operand_dtype(device: torch.device, weights: torch.dtype) -> torch.dtype:
    """Return the dtype of the products' operands: autocast's if it is enabled, else that of the weights."""
    return torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else weights
