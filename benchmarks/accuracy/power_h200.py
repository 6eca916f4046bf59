"""Power of one NVIDIA GPU under known work: `python benchmarks/accuracy/power_h200.py [SECONDS]` on the GPU machine.

Each workload repeats for a few seconds, while a process of its own reads NVML ten times a second. $OUT/workloads.jsonl has what each
did (FLOP and bytes of one repeat, repeats, begin and end), $OUT/nvml.csv the meter, $OUT/card.json the card and its limits. The meter is
joined with the workloads by time. What cannot run is recorded with its reason. Needs torch; the decoder's rows need transformers.
"""
# pyright: reportPrivateImportUsage=false

import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "trainer"))
sys.path.insert(0, str(Path(__file__).parents[2] / "src"))
OUT = Path(os.environ.get("OUT", "."))
LIMIT = float(sys.argv[1]) if len(sys.argv) > 1 and sys.argv[1] != "meter" else 116.0
"""Seconds after which no workload starts."""
EACH = 3.2
"""Seconds of each workload."""
INSTANT = 186
"""NVML_FI_DEV_POWER_INSTANT: power now, where nvmlDeviceGetPowerUsage is a mean over a second."""
BEGAN = time.monotonic()


class Field(ctypes.Structure):
    """nvmlFieldValue_t."""

    _fields_ = (
        ("field", ctypes.c_uint), ("scope", ctypes.c_uint), ("timestamp", ctypes.c_longlong), ("latency", ctypes.c_longlong),
        ("type", ctypes.c_uint), ("status", ctypes.c_uint), ("value", ctypes.c_ulonglong),
    )  # fmt: skip


def meter(path: Path) -> None:
    """Write time, mean and instant milliwatts, millijoules so far, SM and memory clock, degrees, reasons of throttling at 10 Hz."""
    nvml = ctypes.CDLL("libnvidia-ml.so.1")
    nvml.nvmlInit_v2()
    card = ctypes.c_void_p()
    nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(card))

    def number(name: str, kind: Any, *given: int) -> int:
        value = kind()
        call = getattr(nvml, name)
        return int(value.value) if call(card, *given, ctypes.byref(value)) == 0 else -1

    with path.open("w", encoding="utf-8") as table:
        table.write("time,mw,instant_mw,mj,sm_mhz,memory_mhz,degrees,throttle,utilization\n")
        while os.getppid() != 1:
            now = time.time()
            field = Field(field=INSTANT)
            nvml.nvmlDeviceGetFieldValues(card, 1, ctypes.byref(field))
            busy = (ctypes.c_uint * 2)()
            nvml.nvmlDeviceGetUtilizationRates(card, ctypes.byref(busy))
            row = [
                number("nvmlDeviceGetPowerUsage", ctypes.c_uint), (field.value & 0xFFFFFFFF) if field.status == 0 else -1,
                number("nvmlDeviceGetTotalEnergyConsumption", ctypes.c_ulonglong), number("nvmlDeviceGetClockInfo", ctypes.c_uint, 1),
                number("nvmlDeviceGetClockInfo", ctypes.c_uint, 2), number("nvmlDeviceGetTemperature", ctypes.c_uint, 0),
                number("nvmlDeviceGetCurrentClocksThrottleReasons", ctypes.c_ulonglong), busy[0],
            ]  # fmt: skip
            table.write(f"{now:.3f}," + ",".join(map(str, row)) + "\n")
            table.flush()
            time.sleep(max(0.0, 0.1 - (time.time() - now)))


def smi(*words: str) -> subprocess.CompletedProcess[str]:
    """Run nvidia-smi; its failure is a result too."""
    try:
        return subprocess.run(["nvidia-smi", *words], capture_output=True, text=True, check=False)
    except OSError as error:
        return subprocess.CompletedProcess(words, 127, "", str(error))


def record(name: str, **values: object) -> None:
    with (OUT / "workloads.jsonl").open("a", encoding="utf-8") as table:
        table.write(json.dumps({"name": name, **values}) + "\n")
    print(f"{time.monotonic() - BEGAN:6.1f} s  {name}  {json.dumps(values)[:200]}", flush=True)


def repeat(name: str, call: Callable[[], object], flops: float, moved: float, seconds: float = EACH, **facts: object) -> None:
    """Repeat a call for some seconds, waiting for the device every tenth of a second at most, and record what it did."""
    import torch

    if time.monotonic() - BEGAN > LIMIT - seconds:
        record(name, skipped="no time left")
        return
    try:
        call()
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        torch.cuda.synchronize()
        block = max(1, int(0.1 / max(1e-6, time.perf_counter() - start)))
        begin, done = time.time(), 0
        while time.time() - begin < seconds:
            for _ in range(block):
                call()
            torch.cuda.synchronize()
            done += block
        end = time.time()
    except Exception as error:  # a kernel that this build lacks: the other workloads go on
        record(name, failed=f"{type(error).__name__}: {str(error)[:200]}")
        return
    record(name, begin=begin, end=end, repeats=done, seconds=(end - begin) / done, flops=flops, bytes=moved, **facts)
    time.sleep(0.5)


def graph(call: Callable[[], object]) -> Callable[[], object]:
    """Return a call that replays this one as a CUDA graph."""
    from meshwise.workers.decoder.clock import capture

    captured: Any = capture(call)
    return lambda: (captured.replay(), call)  # the call holds the tensors that the graph reads


def products() -> None:
    """Matrix products by precision, size and batch: from bound by the tensor cores to bound by memory."""
    import torch

    def product(m: int, n: int, k: int, copies: int, dtype: Any = torch.bfloat16) -> Callable[[], object]:
        left, rights = (
            torch.randn(m, k, device="cuda").to(dtype),
            [torch.randn(k, n, device="cuda").to(dtype) for _ in range(copies)],
        )
        out = torch.empty(m, n, device="cuda", dtype=dtype)
        return graph(lambda: [torch.mm(left, right, out=out) for right in rights])

    for m, n, k, copies in (
        (8192, 8192, 8192, 1),
        (1024, 4096, 4096, 8),
        (256, 8192, 8192, 16),
        (32, 8192, 8192, 16),
        (1, 8192, 8192, 16),
    ):
        moved = 2.0 * copies * (k * n + m * k + m * n)
        repeat(f"bf16 product {m}x{n}x{k}", product(m, n, k, copies), 2.0 * m * n * k * copies, moved, dtype="bf16")
        torch.cuda.empty_cache()
    repeat(
        "fp32 product 8192", product(8192, 8192, 8192, 1, torch.float32), 2.0 * 8192**3, 12.0 * 8192**2, dtype="fp32", seconds=3.0
    )
    kind = torch.float8_e4m3fn
    left, right = torch.randn(8192, 8192, device="cuda").to(kind), torch.randn(8192, 8192, device="cuda").to(kind).t()
    one = torch.ones((), device="cuda")
    repeat(
        "fp8 product 8192", lambda: torch._scaled_mm(left, right, scale_a=one, scale_b=one, out_dtype=torch.bfloat16),
        2.0 * 8192**3, 4.0 * 8192**2, dtype="fp8",
    )  # fmt: skip


def copies() -> None:
    """Copies and sums of arrays that no cache holds."""
    import torch

    big, other = torch.randn(2**30, device="cuda"), torch.empty(2**30, device="cuda")
    repeat("copy", lambda: other.copy_(big), 0.0, 8.0 * 2**30)
    repeat("sum", lambda: big.sum(), 0.0, 4.0 * 2**30, seconds=3.0)


def memory_bound() -> None:
    """Copies, reads, elementwise work, attention, half-idle products, and small kernels that leave the device waiting."""
    import torch
    from torch.nn import functional

    copies()
    torch.cuda.empty_cache()
    q, k, v = (torch.randn(2, 32, 8192, 128, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    flops = 4.0 * 2 * 32 * 8192**2 * 128 / 2
    repeat(
        "attention 8192",
        lambda: functional.scaled_dot_product_attention(q, k, v, is_causal=True),
        flops,
        8.0 * q.numel(),
        dtype="bf16",
    )
    left, right = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))

    def half() -> None:
        start = time.perf_counter()
        for _ in range(20):
            _ = left @ right
        torch.cuda.synchronize()
        time.sleep(time.perf_counter() - start)

    repeat("product half of the time", half, 20 * 2.0 * 8192**3, 20 * 6.0 * 8192**2, dtype="bf16")
    small = torch.randn(256, 256, device="cuda", dtype=torch.bfloat16)
    repeat("small kernels", lambda: [small @ small for _ in range(200)], 200 * 2.0 * 256**3, 200 * 6.0 * 256**2, seconds=3.0)


def decoder() -> None:
    """Decode steps and prompts of Llama 3.1 8B by our fused decoder."""
    import torch

    import train
    from meshwise.workers.decoder.session import build
    from meshwise.workers.decoder.settings import Job, Point

    model = train.preset("llama-3-8b")
    points = tuple(Point(prompt=prompt, output=128, users=users) for prompt, users in ((4096, 1), (1024, 32), (1024, 128)))
    timed = build(Job(name="llama-3-8b", model=model, points=points, variant="library"))
    weights, cache = 2.0 * 7.5e9, 2.0 * 2 * 32 * 8 * 128
    for point in points:
        length = point.prompt + point.output / 2
        flops = point.users * (2 * 7.5e9 + 4.0 * 32 * 4096 * length)
        repeat(
            f"decode 8b users {point.users}",
            timed.steps(point),
            128 * flops,
            128 * (weights + point.users * cache * length),
            dtype="bf16",
        )
    prompt = 2.0 * 7.0e9 * 4096 + 2.0 * 32 * 4096 * 4096**2
    repeat("prefill 8b 4096", timed.prompt(4096), prompt, 2 * weights, dtype="bf16")
    del timed
    torch.cuda.empty_cache()


def trainer() -> None:
    """Steps of our trainer, as `meshwise run` takes them: Llama 3.2 1B, all weights and LoRA."""
    import torch

    import train

    lora = {"finetune": {"method": "lora", "rank": 16, "alpha": 32.0, "targets": ["all-linear"]}}
    cases = {"train 1b lora": lora, "train 1b seq 512": {"seq": 512, "batch": 4}, "train 1b": {}}
    for name, options in cases.items():
        batch, seq = int(options.get("batch", 8)), int(options.get("seq", 2048))
        if time.monotonic() - BEGAN > LIMIT - 8:
            record(name, skipped="no time left")
            continue
        begin = time.time()
        stepper: Any = train.ready("llama-3.2-1b", batch, seq, {"compile": False, **options})[1]
        data = torch.randint(0, 256, (2, batch, seq)).pin_memory()
        for _ in range(4):
            stepper.launch(12, data[0], data[1])
        torch.cuda.synchronize()
        record(f"{name}: ready", seconds=time.time() - begin)
        repeat(name, lambda: stepper.launch(12, data[0], data[1]), 0.0, 0.0, batch=batch, seq=seq)  # noqa: B023
        if name == "train 1b":
            states(lambda: stepper.launch(12, data[0], data[1]))  # noqa: B023
        stepper = None
        torch.cuda.empty_cache()


def states(step: Callable[[], object]) -> None:
    """A product, a memory-bound product and a step of training at lower power limits and clocks, where the driver permits them."""
    import torch

    left, right = (torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    out, vector = (
        torch.empty(8192, 8192, device="cuda", dtype=torch.bfloat16),
        torch.randn(1, 8192, device="cuda", dtype=torch.bfloat16),
    )
    stack = [torch.randn(8192, 8192, device="cuda", dtype=torch.bfloat16) for _ in range(8)]
    thin = graph(lambda: [torch.mm(vector, matrix) for matrix in stack])
    for words, undo in ((["-pl", "500"], ["-pl", "700"]), (["-pl", "350"], ["-pl", "700"]), (["-lgc", "1200,1200"], ["-rgc"])):
        done = smi(*words)
        state = " ".join(words)
        if done.returncode:
            record(f"state {state}", failed=(done.stdout + done.stderr).strip()[-200:])
            continue
        repeat(
            "bf16 product 8192",
            lambda: torch.mm(left, right, out=out),
            2.0 * 8192**3,
            6.0 * 8192**2,
            2.2,
            state=state,
            dtype="bf16",
        )
        repeat("bf16 product 1x8192x8192", thin, 16.0 * 8192**2, 16.0 * 8192**2, 2.2, state=state, dtype="bf16")
        repeat("train 1b", step, 0.0, 0.0, 2.2, state=state, batch=8, seq=2048)
        smi(*undo)


def main() -> None:
    query = "name,driver_version,power.limit,power.min_limit,power.max_limit,power.default_limit,clocks.max.sm,clocks.max.memory"
    card = smi(f"--query-gpu={query}", "--format=csv").stdout
    reading = subprocess.Popen([sys.executable, __file__, "meter"])
    import torch

    (OUT / "card.json").write_text(json.dumps({"nvidia-smi": card, "torch": torch.__version__}), encoding="utf-8")
    try:
        begin = time.time()
        time.sleep(3)
        record("idle, no context", begin=begin, end=time.time(), flops=0.0, bytes=0.0)
        torch.zeros(1, device="cuda")
        time.sleep(1.5)
        begin = time.time()
        time.sleep(3)
        record("idle with a context", begin=begin, end=time.time(), flops=0.0, bytes=0.0)
        for phase in (products, memory_bound, decoder, trainer):
            try:
                phase()
            except Exception as error:  # the other phases go on
                record(phase.__name__, failed=f"{type(error).__name__}: {str(error)[:400]}")
        begin = time.time()
        time.sleep(2)
        record("idle at the end", begin=begin, end=time.time(), flops=0.0, bytes=0.0)
    finally:
        reading.terminate()
        smi("-rgc")


if __name__ == "__main__":
    if sys.argv[1:] == ["meter"]:
        meter(OUT / "nvml.csv")
    else:
        main()
