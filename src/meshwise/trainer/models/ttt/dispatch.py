"""Whether the kernels serve a layer: what they need, and the one line that says why they do not."""

import importlib.util
import logging
from functools import cache

import torch

HEAD_SIZES = (32, 64, 128)
MINI_BATCHES = (16, 32, 64)
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


@cache
def unserved(device: torch.device, dtype: torch.dtype, head_size: int, mini_batch: int) -> str:
    """Why the kernels do not serve this layer; nothing where they do."""
    if device.type != "cuda":
        return f"they run on CUDA, not on {device.type}"
    if torch.cuda.get_device_capability(device) < (8, 0):
        return f"they need an Ampere GPU or a later one, and {torch.cuda.get_device_name(device)} is older"
    if importlib.util.find_spec("triton") is None:
        return "they need triton, which is not installed"
    if head_size not in HEAD_SIZES:
        return f"they serve heads of {', '.join(map(str, HEAD_SIZES))} features, not {head_size}"
    if mini_batch not in MINI_BATCHES:
        return f"they serve mini-batches of {', '.join(map(str, MINI_BATCHES))} tokens, not {mini_batch}"
    if dtype not in DTYPES:
        return (
            f"they serve {', '.join(str(one).removeprefix('torch.') for one in DTYPES)}, not {str(dtype).removeprefix('torch.')}"
        )
    return ""


@cache
def serves(device: torch.device, dtype: torch.dtype, head_size: int, mini_batch: int) -> bool:
    """Whether to take the kernels. Where a GPU goes without them, says so, once."""
    reason = unserved(device, dtype, head_size, mini_batch)
    if reason and device.type == "cuda":
        logging.getLogger("meshwise").warning("TTT layers run in plain PyTorch, not in their kernels: %s", reason)
    return not reason


def operand_dtype(device: torch.device, weights: torch.dtype) -> torch.dtype:
    """Of the products: autocast's where it is on."""
    return torch.get_autocast_dtype(device.type) if torch.is_autocast_enabled(device.type) else weights
