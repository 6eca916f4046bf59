"""torchrun: a plain script, started once on every node."""

from meshwise.programs.forms import comment
from meshwise.programs.launch import script
from meshwise.programs.program import Job, Launcher

FILE = "train.sh"


def write(job: Job) -> dict[str, str]:
    """Return the script of a node."""
    several = job.nodes > 1
    how = f"Start on each of {job.nodes} nodes: NODE_RANK=0 MASTER_ADDR=NODE_0 bash {FILE}" if several else f"Start: bash {FILE}"
    rank = '"${NODE_RANK:?set NODE_RANK: the number of this node, from 0}"'
    address = '"${MASTER_ADDR:?set MASTER_ADDR: the address of node 0}"'
    variables = script.variables(str(job.nodes), rank, address, f"${{MASTER_PORT:-{script.DEFAULT_PORT}}}")
    text = ["#!/bin/bash", comment([*job.header, how]).rstrip("\n"), "set -euo pipefail", *script.lines(job, variables)]
    return {FILE: "\n".join(text) + "\n"}


LAUNCHER = Launcher(name="torchrun", title="torchrun", version="2.13", write=write, start=f"bash {FILE}", check=f"bash -n {FILE}")
