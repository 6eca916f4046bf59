"""Memory that llama.cpp reports, from its log and its dry run. Lines printed by llama-server and llama-fit-params (ggml 0.25.3)."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from meshwise.errors import DoesNotFit
from meshwise.plan.ask import ServeAsk
from meshwise.run.serve.allocations import MIB, Allocation, dry_run, from_dry_run, from_log
from meshwise.run.serve.deployment import deployment
from meshwise.run.serve.memory import compare, differences, other_devices, planned_memory

LOG = """\
0.00.265.252 I load_tensors: offloaded 31/31 layers to GPU
0.00.265.260 I load_tensors:   CPU_REPACK model buffer size =    51.31 MiB
0.00.265.263 I load_tensors:   CPU_Mapped model buffer size =    28.69 MiB
0.00.265.265 I load_tensors: RPC0[127.0.0.1:50153] model buffer size =    61.56 MiB
0.00.265.266 I load_tensors: RPC0[127.0.0.1:50152] model buffer size =    37.31 MiB
0.00.509.688 I llama_context:        CPU  output buffer size =     0.19 MiB
0.00.514.109 I llama_kv_cache: RPC0[127.0.0.1:50152] KV buffer size =    24.00 MiB
0.00.526.050 I llama_kv_cache: RPC0[127.0.0.1:50153] KV buffer size =    21.00 MiB
0.00.553.985 I sched_reserve: RPC0[127.0.0.1:50152] compute buffer size =    24.91 MiB
0.00.554.018 I sched_reserve: RPC0[127.0.0.1:50153] compute buffer size =    24.91 MiB
0.00.554.020 I sched_reserve:        CPU compute buffer size =    13.67 MiB
""".splitlines()
DRY = "RPC0 37 24 24 \nRPC1 61 21 114 \nHost 28 0 13 \n"


def mib(*sizes: float) -> dict[str, float]:
    return dict(zip(("weights", "cache", "compute"), (size * MIB for size in sizes), strict=True))


def test_rpc_devices_are_distinguished_by_their_address() -> None:
    """Each server calls its device RPC0; what a processor repacked is told apart."""
    assert from_log(LOG, ["127.0.0.1:50152", "127.0.0.1:50153"]) == [
        Allocation(device="host", **mib(28.69, 0, 13.67), repacked=51.31 * MIB),
        Allocation(device="RPC0", **mib(37.31, 24, 24.91)),
        Allocation(device="RPC1", **mib(61.56, 21, 24.91)),
    ]


def test_buffers_over_several_devices_and_logs_without_buffers_give_no_allocations() -> None:
    assert from_log(["load_tensors:   CUDA_Split model buffer size =  4403.49 MiB"]) == []
    assert from_log(["I srv  llama_server: model loaded"]) == []


def test_devices_are_in_order_and_pinned_memory_belongs_to_the_host() -> None:
    names = ("CUDA10", "CUDA2", "CUDA_Host", "CPU_Mapped")
    said = from_log([f"load_tensors: {name} model buffer size = {size} MiB" for size, name in enumerate(names, start=1)])
    assert [(one.device, one.weights / MIB) for one in said] == [("host", 7), ("CUDA2", 2), ("CUDA10", 1)]


def test_the_dry_run_is_read_host_first() -> None:
    assert [one.device for one in from_dry_run(DRY)] == ["host", "RPC0", "RPC1"]
    assert from_dry_run(DRY)[2] == Allocation(device="RPC1", **mib(61, 21, 114))


def test_a_failed_dry_run_is_reported_in_its_own_words(tmp_path: Path) -> None:
    said = "0.00.003.072 E llama_model_load: error loading model: invalid magic"
    words = [sys.executable, "-c", f"import sys; print({said!r}, file=sys.stderr); sys.exit(134)"]
    with pytest.raises(DoesNotFit, match="llama-fit-params ended with exit code 134: error loading model: invalid magic"):
        dry_run(words, 20)
    with pytest.raises(DoesNotFit, match="cannot be started"):
        dry_run([str(tmp_path / "none")], 20)
    with pytest.raises(DoesNotFit, match=r"did not end within 0\.1 s"):
        dry_run([sys.executable, "-c", "import time; time.sleep(9)"], 0.1)


def test_planned_and_reported_bytes_are_compared_and_differences_reported() -> None:
    """The plan's own figures are no surprise, nor less working memory; layers on another card are."""
    one = deployment(ServeAsk(model="llama-3-8b:q4_k_m", on="2xrtx4060ti-16gb", fix=("split=layer", "cards=2")))
    counted = [replace(need, device=name) for need, name in zip(planned_memory(one), ("host", "CUDA0", "CUDA1"), strict=True)]
    assert differences(compare(one, counted)) == []
    assert differences(compare(one, [replace(need, compute=0.0) for need in counted])) == []
    moved = [counted[0], replace(counted[1], weights=counted[1].weights + 2 * MIB), counted[2]]
    (told,) = differences(compare(one, moved))
    assert told.startswith("differs from the plan on CUDA0: weights 2.0")
    assert other_devices(one, counted) == ""
    assert compare(one, counted[:1]) == []
    assert other_devices(one, counted[:1]) == ("the plan has 2 devices besides the host, but llama.cpp finds only the CPU")


@pytest.mark.parametrize("tied", [True, False])
def test_a_cpu_holds_the_embedding_once(tied: bool) -> None:
    """A tied head is the embedding; else both are there: all bytes of the file's weights."""
    one = deployment(ServeAsk(model=f"{'smollm2-135m' if tied else 'llama-3-8b'}:q4_k_m", on="cpu"))
    (host,) = planned_memory(one)
    assert host.weights == sum(weight.bytes for weight in one.question.weights.tensors if weight.slot.stored)
