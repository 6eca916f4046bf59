"""Rules on made-up traces of GPUs: shapes, memory, links and clocks that no machine here can show. Times follow from rates that a comment
names."""

import json

import pytest

from meshwise import api
from support.traces import write_trace

H200 = {"deviceProperties": [{"id": 0, "name": "NVIDIA H200"}]}


class Steps:
    """Steps of a trace, written one kernel after another."""

    def __init__(self):
        self.events, self.at, self.number = [], 0.0, 0

    def call(self, name, seconds, category="cuda_runtime"):
        self.events.append(
            {"ph": "X", "cat": category, "name": name, "pid": 1, "tid": 1, "ts": 1e6 * self.at, "dur": 1e6 * seconds}
        )
        self.at += seconds

    def kernel(self, name, seconds, operator="aten::mm", dims=(), **args):
        """Add a kernel with the operator that launched it, 100 us before."""
        self.number += 1
        known = {"External id": self.number, "correlation": self.number}
        shaped = {"Input Dims": [list(one) for one in dims], "Input type": ["c10::BFloat16"] * len(dims)}
        begun = 1e6 * self.at - 100
        for category, what, start, length, more in (
            ("cpu_op", operator, begun, 20, shaped),
            ("cuda_runtime", "cudaLaunchKernel", begun + 5, 5, {}),
            ("kernel", name, 1e6 * self.at, 1e6 * seconds, {"stream": 7, **args}),
        ):
            event = {
                "ph": "X",
                "cat": category,
                "name": what,
                "pid": 1,
                "tid": 1,
                "ts": start,
                "dur": length,
                "args": known | more,
            }
            self.events.append(event)
        self.at += seconds

    def product(self, m, n, k, rate):
        self.kernel("nvjet_sm90_gemm", 2 * m * n * k / rate, dims=((m, k), (k, n)))

    def update(self):
        self.kernel("multi_tensor_apply_kernel<FusedAdamMathFunctor>", 1e-3, "aten::_fused_adamw_")
        mark = {"ph": "X", "cat": "user_annotation", "name": "Optimizer.step#AdamW.step", "pid": 1, "tid": 1}
        self.events.append(mark | {"ts": 1e6 * (self.at - 1e-3) - 90, "dur": 60})

    def diagnosed(self, tmp_path, name="trace.json", **facts):
        path = write_trace(tmp_path / name, self.events)
        path.write_text(json.dumps(json.loads(path.read_text()) | H200 | facts))
        return path


def trained(vocabulary=32768, rate=700e12, odd_rate=700e12, steps=3):
    """Return steps of a layer and a head: products of even sizes at one rate (700 TFLOP/s: H200, bf16), those of the head at another."""
    made = Steps()
    for _ in range(steps):
        for _ in range(8):
            made.product(8192, 8192, 2048, rate)
            made.product(8192, 2048, 8192, rate)
        for shape in ((8192, vocabulary, 2048), (8192, 2048, vocabulary), (vocabulary, 2048, 8192)):
            made.product(*shape, odd_rate)
        made.update()
    return made


def named(found):
    return {fault.name: fault.certainty for fault in found.faults}


def test_a_vocabulary_that_is_no_multiple_of_eight_is_named_where_it_costs_time(tmp_path):
    found = api.doctor(trained(50257, odd_rate=350e12).diagnosed(tmp_path))
    assert named(found) == {"uneven shapes": "certain"}
    assert "50,304" in found.faults[0].change
    # with as high a rate as its neighbours an odd size costs nothing
    assert named(api.doctor(trained(50257).diagnosed(tmp_path))) == {}


def test_an_odd_number_of_tokens_is_no_fault_where_all_products_are_a_little_slower_than_predicted(tmp_path):
    made = Steps()
    for _ in range(3):
        for _ in range(8):
            made.product(8184, 8192, 2048, 560e12)
            made.product(8192, 2048, 8190, 560e12)
        made.update()
    assert named(api.doctor(made.diagnosed(tmp_path))) == {}


def test_a_chip_on_which_all_products_are_slow_is_named(tmp_path):
    assert named(api.doctor(trained(rate=400e12, odd_rate=400e12).diagnosed(tmp_path))) == {"slow chip": "likely"}


def test_memory_that_every_step_gives_back_is_named_with_what_it_costs(tmp_path):
    made = Steps()
    for _ in range(3):
        for _ in range(8):
            made.product(8192, 8192, 2048, 700e12)
        for _ in range(4):
            made.call("cudaFree", 40e-6)
            made.call("cudaMalloc", 60e-6)
        made.update()
    found = api.doctor(made.diagnosed(tmp_path))
    assert named(found) == {"allocator": "certain"}
    assert "retries near the limit" in found.faults[0].evidence


def sharing(exposed_rate, factor=1.0, world=2):
    """Return steps in which gradients of 200 MB are reduced behind nothing, at so many bytes per second."""
    made = Steps()
    for _ in range(3):
        for _ in range(8):
            made.product(8192, 8192, 2048, 700e12 / factor)
            made.product(8192, 2048, 8192, 700e12 / factor)
        words = {"Collective name": "allreduce", "In msg nelems": 100_000_000, "dtype": "BFloat16", "Group size": world}
        for name in ("flash_fwd_kernel", "rms_norm", "elementwise_kernel"):
            made.kernel(name, 2e-3 * factor, "aten::other")
        made.kernel("ncclDevKernel_AllReduce_Sum_bf16_RING_LL", 200e6 / exposed_rate, "c10d::allreduce_", **words)
        made.update()
    return made


@pytest.mark.parametrize(("rate", "words"), [(20e9, "PCIe instead"), (1.5e9, "sockets, or the wrong network interface")])
def test_gpus_that_talk_over_pcie_or_sockets_are_named(tmp_path, rate, words):
    world = {"distributedInfo": {"rank": 0, "world_size": 2}}
    found = api.doctor(sharing(rate).diagnosed(tmp_path, **world))
    assert named(found) == {"slow link": "likely"}
    assert words in found.faults[0].message
    assert named(api.doctor(sharing(300e9).diagnosed(tmp_path, "fast.json", **world))) == {}


def test_a_gpu_whose_kernels_are_all_slower_than_those_of_other_ranks_is_named(tmp_path):
    files = []
    for rank in range(4):
        slow = 1.5 if rank == 2 else 1.0
        facts = {"distributedInfo": {"rank": rank, "world_size": 4}}
        files.append(sharing(300e9, slow, 4).diagnosed(tmp_path, f"rank{rank}.json", **facts))
    found = api.doctor(*files)
    (fault,) = [one for one in found.faults[:2] if one.name == "throttled GPU"]
    assert fault.ranks == (2,)
