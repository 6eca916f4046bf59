"""A torch profiler trace of one step on a GPU, made up, and a file of it."""

import json
from pathlib import Path


def kernel(name: str, start: float, length: float, stream: int = 7) -> dict[str, object]:
    return {
        "ph": "X",
        "cat": "kernel",
        "name": name,
        "pid": 0,
        "tid": stream,
        "ts": start,
        "dur": length,
        "args": {"stream": stream},
    }


GPU = [
    kernel("sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64", 0, 100),
    kernel("void flash::flash_fwd_kernel<...>", 100, 50),
    kernel("void at::native::vectorized_elementwise_kernel<4, ...>", 150, 30),
    kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 170, 50, stream=20),
    kernel("void at::native::multi_tensor_apply_kernel<..., FusedAdamMathFunctor>", 240, 20),
    {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 0, "dur": 900},
    {"ph": "M", "name": "process_name", "pid": 0, "args": {"name": "python"}},
]


def write_trace(path: Path, events: list[dict[str, object]]) -> Path:
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events, "traceName": path.name}, indent=1))
    return path
