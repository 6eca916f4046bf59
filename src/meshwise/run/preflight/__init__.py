"""preflight: is this cluster what it says it is, and which of its parts is slow or broken.

ask.py        PreflightAsk: what to look at and how long, in the words of the command line
tools.py      facts of nodes from nvidia-smi, rocm-smi, /sys, Slurm and Kubernetes; nothing that they print is run
cluster.py    facts of nodes -> cluster.toml, each with its source, and what could not be seen
predicted.py  the rates that the cost model predicts for a chip and its links
verdict.py    rows of `meshwise.workers.probe.health` -> findings: which node, device or link is slow, against what
history.py    rates per node of earlier preflights, in the user's folder
jobs.py       the workers of this node, or a job of Slurm or Kubernetes that starts them on all
result.py     Preflight: facts, rates, findings, exclude and cordon lists
start.py      a preflight from its question to its result
"""
