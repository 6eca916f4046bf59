"""Predicted against measured communication of the trainer on hosts in network namespaces of this machine, with slow cables, on CPUs.

    sudo python benchmarks/trainer/hosts_with_limits.py [2 4] [--rate 1000] [--delay 0] [--only FSDP]

Every host has one process. Communication is the time of a step minus that of the same step with collectives that move nothing
(silent_trainer.py); a run on unlimited cables would be no such baseline, since gloo moves its bytes with the CPU. The bytes that a host
sends per step are the difference between the interface's counters after a long and a short run. The prediction is the cost model's for
such hosts, with what Ethernet, IP and TCP leave of a cable, the latency of a small all-gather's step (step_latency.py), as a probe
measures it, and nothing hidden: collectives of gloo make a rank wait.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]

from delayed_hosts import DelayedHosts
from meshwise.cost.layout import Layouts
from meshwise.cost.train.step import evaluate
from meshwise.models.model import build
from meshwise.plan.train import own_run
from meshwise.workers.trainer.contract.settings import Layout, Settings
from support import three_hosts
from support.three_hosts import ThreeHosts, ip

PAYLOAD = 1448 / 1514
"""Share of the bytes that the token bucket counts which are bytes of a tensor: of a frame of 1514, 1448 are."""
MODEL: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 4, "num_attention_heads": 8,
    "num_key_value_heads": 8, "vocab_size": 8192, "tie_word_embeddings": True, "rms_norm_eps": 1e-5, "rope_theta": 10000.0,
}  # fmt: skip
BATCH, SHORT, STEPS = 4, 2, 8
COMMUNICATION = ("dp", "tp", "cp", "pp", "p2p", "ep")
SILENT, REAL, LATENCY = "silent_trainer", "meshwise.workers.trainer", "step_latency"


@dataclass(frozen=True)
class Case:
    layout: Layout
    seq: int

    def settings(self, steps: int = STEPS, out: str = "") -> Settings:
        return Settings(
            name="hosts", model=MODEL, layout=self.layout, batch=BATCH, seq=self.seq, steps=steps, precision="bf16", out=out
        )


def cases(hosts: int) -> dict[str, Case]:
    """Return layouts by name. Tensor parallelism has more tokens, since it sends activations alone."""
    each = BATCH // hosts
    return {
        "FSDP": Case(Layout(dp_shard=hosts, mbs=each), 64),
        "replicas": Case(Layout(dp_replicate=hosts, mbs=each), 64),
        "tensor parallel": Case(Layout(tp=hosts, mbs=BATCH), 256),
    }


def on_every_host(hosts: ThreeHosts, program: str, given: str) -> None:
    """Run a program as one process on each host."""
    places = f"{ROOT / 'src'}:{Path(__file__).parent}"
    environment = os.environ | {"PYTHONPATH": places, "GLOO_SOCKET_IFNAME": "cable", "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(
            [
                *hosts.before(number), sys.executable, "-m", "torch.distributed.run", "--nnodes", str(len(hosts.names)),
                "--node-rank", str(number), "--nproc-per-node", "1", "--master-addr", "10.79.0.1", "--master-port", "29500",
                "-m", program, given,
            ],
            env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
        )
        for number in range(len(hosts.names))
    ]  # fmt: skip
    errors = [process.communicate(timeout=600)[1] for process in running]
    if any(process.returncode for process in running):
        raise RuntimeError(errors[0][-2000:])


def step_seconds(hosts: ThreeHosts, case: Case, steps: int, program: str = REAL) -> float:
    """Run the trainer on all hosts; return the seconds of its fastest step: other programs on this machine only add to it."""
    with tempfile.TemporaryDirectory() as folder:
        case.settings(steps, folder).write(Path(folder, "config.json"))
        on_every_host(hosts, program, f"{folder}/config.json")
        rows = [json.loads(line) for line in Path(folder, "steps.jsonl").read_text(encoding="utf-8").splitlines()]
    return min(row["seconds"] for row in rows[1:])


def step_latency(hosts: ThreeHosts) -> float:
    """Return the seconds of a step of gloo's rings: the receiver first says that it is ready, so that it takes two delays of a cable."""
    with tempfile.TemporaryDirectory() as folder:
        on_every_host(hosts, LATENCY, f"{folder}/latency")
        return float(Path(folder, "latency").read_text(encoding="utf-8"))


def sent(hosts: ThreeHosts) -> int:
    """Return the bytes that a host has sent so far, as a mean over hosts."""
    counters = [
        ip("netns", "exec", name, "cat", "/sys/class/net/cable/statistics/tx_bytes", "/sys/class/net/cable/statistics/tx_packets")
        for name in hosts.names
    ]
    return sum(int(text.split()[0]) for text in counters) // len(counters)


def limit(hosts: ThreeHosts, rate: float) -> None:
    """Limit what every host sends to `rate` bits per second; 0: no limit."""
    for name in hosts.names:
        ip("netns", "exec", name, "tc", "qdisc", "del", "dev", "cable", "root", check=False)
        if rate:
            words = ("rate", f"{rate:.0f}bit", "burst", "256kb", "latency", "200ms")
            ip("netns", "exec", name, "tc", "qdisc", "add", "dev", "cable", "root", "tbf", *words)


def predicted(count: int, case: Case, rate: float, latency: float) -> float:
    """Return the seconds of communication that the cost model predicts for hosts on such cables."""
    cluster = f"{count}x1xcpu@{rate / 1e6:g}Mbps"
    q = own_run.question(case.settings(), build(MODEL, "hosts", "benchmark"), cluster)
    q = replace(q, calibration=replace(q.calibration, network=PAYLOAD, network_latency=latency, hidden_dp=0.0, exposed_tp=1.0))
    a = case.layout
    axes: dict[str, int | str] = {
        name: getattr(a, name) for name in ("dp_replicate", "dp_shard", "tp", "pp", "cp", "ep", "mbs", "vpp")
    }
    axes |= {"etp": a.tp, "sp": int(a.tp > 1), "offload": "none", "zero": 3 if a.dp_shard > 1 else 0}
    axes |= {"schedule": "1f1b", "recompute": "none"}
    cost = evaluate(q, Layouts.from_row(axes))
    return float(sum(cost.time[name][0] for name in COMMUNICATION if name in cost.time))


def compare(hosts: ThreeHosts, name: str, case: Case, rate: float, latency: float) -> None:
    count = len(hosts.names)
    limit(hosts, 0)
    computing = step_seconds(hosts, case, STEPS, SILENT)
    before = sent(hosts)
    free = step_seconds(hosts, case, SHORT)
    short = sent(hosts) - before
    limit(hosts, rate)
    before = sent(hosts)
    limited = step_seconds(hosts, case, STEPS)
    bytes_ = (sent(hosts) - before - short) / (STEPS - SHORT)
    guess = predicted(count, case, rate, latency)
    guessed_bytes = predicted(count, case, rate, 0.0) * rate / 8 * PAYLOAD
    found = limited - computing
    print(
        f"{count} hosts, {name:<16} {bytes_ / 1e6:6.1f} MB a step, predicted {guessed_bytes / 1e6:6.1f} "
        f"({guessed_bytes / bytes_ - 1:+.0%}); communication {found:.3f} s, predicted {guess:.3f} s ({guess / found - 1:+.0%}); "
        f"step {limited:.3f} s, silent {computing:.3f}, unlimited {free:.3f}",
        flush=True,
    )


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("hosts", nargs="*", type=int, help="numbers of hosts (default: 2 4)")
    words.add_argument("--rate", type=float, default=1000.0, help="of a cable in Mbps")
    words.add_argument("--delay", type=float, default=0.0, help="of a cable in ms, one way")
    words.add_argument("--only", default="", help="layouts whose name begins so")
    asked = words.parse_args()
    for count in asked.hosts or (2, 4):
        three_hosts.HOSTS = count
        hosts = DelayedHosts(asked.delay / 1e3) if asked.delay else ThreeHosts()
        try:
            hosts.make()
            limit(hosts, asked.rate * 1e6)
            latency = step_latency(hosts)
            print(
                f"{count} hosts, {asked.rate:g} Mbps, {asked.delay:g} ms: a step of a ring takes {latency * 1e3:.2f} ms",
                flush=True,
            )
            for name, case in cases(count).items():
                if name.startswith(asked.only):
                    compare(hosts, name, case, asked.rate * 1e6, latency)
        finally:
            hosts.remove()


if __name__ == "__main__":
    main()
