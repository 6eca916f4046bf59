"""Predicted against measured communication of the trainer on 2 and 4 hosts in network namespaces of this machine, 1 Gbps each, on CPUs.

    sudo python benchmarks/hosts_with_limits.py [2 4]

Every host has one process. A run on limited cables minus the same run on unlimited ones is its communication; the prediction is the cost
model's for such hosts, with what Ethernet, IP and TCP leave of a cable, and nothing hidden, since gloo works while the CPU waits.
"""

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from meshwise.cost.layout import Layouts  # noqa: E402
from meshwise.cost.train.step import evaluate  # noqa: E402
from meshwise.models.model import build  # noqa: E402
from meshwise.plan.train import own_run  # noqa: E402
from meshwise.workers.trainer.settings import Layout, Settings  # noqa: E402
from support import three_hosts  # noqa: E402

RATE = "1gbit"
PAYLOAD = 1448 / 1538
"""Share of a cable that carries bytes of a tensor: a frame of 1538 bytes on the wire has 1448."""
MODEL: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 8, "vocab_size": 8192, "tie_word_embeddings": True, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
}  # fmt: skip
BATCH, SEQ = 4, 64
STEPS, COUNTED = 9, 6
COMMUNICATION = ("dp", "tp", "cp", "pp", "p2p", "ep")


def layouts(hosts: int) -> dict[str, Layout]:
    each = BATCH // hosts
    return {
        "FSDP": Layout(dp_shard=hosts, mbs=each),
        "replicas": Layout(dp_replicate=hosts, mbs=each),
        "tensor parallel": Layout(tp=hosts, mbs=BATCH),
    }


def settings_of(layout: Layout, out: str) -> Settings:
    return Settings(name="hosts", model=MODEL, layout=layout, batch=BATCH, seq=SEQ, steps=STEPS, precision="bf16", out=out)


def measured(hosts: Any, count: int, layout: Layout) -> float:
    """Return the seconds of the fastest step: other programs on this machine only add to it."""
    with tempfile.TemporaryDirectory() as folder:
        settings_of(layout, folder).write(Path(folder, "config.json"))
        environment = os.environ | {"PYTHONPATH": str(ROOT / "src"), "GLOO_SOCKET_IFNAME": "cable", "OMP_NUM_THREADS": "1"}
        running = [
            subprocess.Popen(
                [
                    *hosts.before(number), sys.executable, "-m", "torch.distributed.run", "--nnodes", str(count),
                    "--node-rank", str(number), "--nproc-per-node", "1", "--master-addr", "10.79.0.1", "--master-port", "29500",
                    "-m", "meshwise.workers.trainer", f"{folder}/config.json",
                ],
                env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
            )
            for number in range(count)
        ]  # fmt: skip
        errors = [process.communicate(timeout=300)[1] for process in running]
        if any(process.returncode for process in running):
            raise RuntimeError(errors[0][-2000:])
        rows = [json.loads(line) for line in Path(folder, "steps.jsonl").read_text(encoding="utf-8").splitlines()]
    return min(row["seconds"] for row in rows[-COUNTED:])


def predicted(count: int, layout: Layout) -> float:
    """Return the seconds of communication that the cost model predicts for hosts on such cables."""
    q = own_run.question(settings_of(layout, ""), build(MODEL, "hosts", "benchmark"), f"{count}x1xcpu@1Gbps")
    q = replace(q, calibration=replace(q.calibration, network=PAYLOAD, network_latency=1e-4, hidden_dp=0.0, exposed_tp=1.0))
    axes: dict[str, int | str] = {
        name: getattr(layout, name) for name in ("dp_replicate", "dp_shard", "tp", "pp", "cp", "ep", "mbs", "vpp")
    }
    axes |= {"etp": layout.tp, "sp": int(layout.tp > 1), "offload": "none", "zero": 3 if layout.dp_shard > 1 else 0}
    axes |= {"schedule": "1f1b", "recompute": "none"}
    cost = evaluate(q, Layouts.from_row(axes))
    return float(sum(cost.time[name][0] for name in COMMUNICATION if name in cost.time))


def main() -> None:
    for count in [int(word) for word in sys.argv[1:]] or [2, 4]:
        three_hosts.HOSTS = count
        hosts = three_hosts.ThreeHosts()
        try:
            hosts.make()
            for name, layout in layouts(count).items():
                free = measured(hosts, count, layout)
                for host in hosts.names:
                    three_hosts.ip("netns", "exec", host, "tc", "qdisc", "add", "dev", "cable", "root", "tbf", *LIMIT)
                limited = measured(hosts, count, layout)
                for host in hosts.names:
                    three_hosts.ip("netns", "exec", host, "tc", "qdisc", "del", "dev", "cable", "root")
                found, guess = limited - free, predicted(count, layout)
                print(
                    f"{count} hosts, {name:<16} step {free:.3f} s unlimited, {limited:.3f} s at {RATE}: communication {found:.3f} s, "
                    f"predicted {guess:.3f} s ({guess / found - 1:+.0%})",
                    flush=True,
                )
        finally:
            hosts.remove()


LIMIT = ("rate", RATE, "burst", "256kb", "latency", "100ms")
"""Of the token bucket filter at each end of a cable."""


if __name__ == "__main__":
    main()
