"""Ray: a driver that reserves the devices of every node at once, and runs the command there."""

from meshwise.programs.forms import comment
from meshwise.programs.launch import script
from meshwise.programs.program import Job, Launcher

FILE = "train_ray.py"
DRIVER = '''import os
import socket
import subprocess
import sys

import ray
from ray.util.placement_group import placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

NODES = {nodes}
PER_NODE = {resources}
SCRIPT = {script}


def address():
    """Return the address of this node and a free port."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        return ray.util.get_node_ip_address(), probe.getsockname()[1]


def node(rank, master, port):
    """Run the command on one node; return its exit code."""
    names = {{"NNODES": str(NODES), "NODE_RANK": str(rank), "MASTER_ADDR": master, "MASTER_PORT": str(port)}}
    return subprocess.run(["bash", "-c", SCRIPT], env={{**os.environ, **names}}).returncode


def main():
    ray.init(address="auto", runtime_env={{"working_dir": "."}})
    group = placement_group([PER_NODE] * NODES, strategy="STRICT_SPREAD")
    ray.get(group.ready())

    def remote(function, bundle, **resources):
        where = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=bundle)
        return ray.remote(scheduling_strategy=where, max_retries=0, **resources)(function)

    devices = {{"num_gpus": PER_NODE["GPU"]}} if "GPU" in PER_NODE else {{"num_cpus": PER_NODE["CPU"]}}
    master, port = ray.get(remote(address, 0, num_cpus=0).remote())
    left = [remote(node, rank, **devices).remote(rank, master, port) for rank in range(NODES)]
    while left:
        done, left = ray.wait(left)
        code = ray.get(done[0])
        if code:
            sys.exit(code)  # the tasks of the other nodes end with the driver


if __name__ == "__main__":
    main()
'''


def write(job: Job) -> dict[str, str]:
    """Return the driver."""
    variables = script.variables('"$NNODES"', '"$NODE_RANK"', '"$MASTER_ADDR"', '"$MASTER_PORT"')
    lines = ["set -euo pipefail", *script.lines(job, variables)]
    per_node = {"CPU": job.devices_per_node} if script.is_cpu(job) else {"GPU": job.devices_per_node, "CPU": 1}
    text = DRIVER.format(nodes=job.nodes, resources=per_node, script=_python_text("\n".join(lines)))
    return {FILE: comment([*job.header, f"Start: ray job submit --working-dir . -- python {FILE}"]) + text}


def _python_text(text: str) -> str:
    """Return a text as Python's source: as it is between three quotes where it can be."""
    plain = '"""' not in text and all(letter.isprintable() or letter == "\n" for letter in text)
    return f'r"""\n{text}\n"""' if plain else repr(f"\n{text}\n")


LAUNCHER = Launcher(
    name="ray", title="Ray", version="2.60", write=write, start=f"ray job submit --working-dir . -- python {FILE}",
    check=f"python -m py_compile {FILE}",
)  # fmt: skip
