"""The shell lines that a node runs: variables, environment, and the command that starts the processes of the node."""

from collections.abc import Mapping, Sequence

from meshwise.catalogue import chips
from meshwise.errors import UserError
from meshwise.programs import forms
from meshwise.programs.program import Job

DEFAULT_PORT = 29500  # the port of node 0 where a launcher assigns none: torchrun's own default
OTHER_HOSTS_ARGUMENTS = ' "${OTHERS[@]}"'
RESOURCES = {"NVIDIA": "nvidia.com/gpu", "AMD": "amd.com/gpu", "Google": "google.com/tpu", "AWS": "aws.amazon.com/neuron"}
"""Names of accelerators as Kubernetes resources, by vendor (their device plugins)."""


RENDEZVOUS = ("--node-rank=$NODE_RANK", "--master-addr=$MASTER_ADDR", "--master-port=$MASTER_PORT")


def variables(nodes: str, rank: str, address: str, port: str = str(DEFAULT_PORT)) -> dict[str, str]:
    """Return the variables that a launcher sets, as shell texts."""
    return {"NNODES": nodes, "NODE_RANK": rank, "MASTER_ADDR": address, "MASTER_PORT": port}


def command(job: Job, options: Sequence[str] = RENDEZVOUS) -> list[str]:
    """Return the words that a node runs: torchrun with its options in front of a script, or the command itself."""
    if job.starter != "torchrun":
        return list(job.command)
    several = ["--nnodes=$NNODES", *options] if job.nodes > 1 else ["--standalone"]
    return ["torchrun", *several, f"--nproc-per-node={job.devices_per_node}", *job.command]


def preflight(job: Job) -> list[str]:
    """Return the command that checks a node and its links first, if the job asks for it; a sick one ends the script."""
    return [f"meshwise preflight --ranks {job.devices_per_node} --out preflight"] if job.preflight else []


def lines(job: Job, variables: Mapping[str, str], *, torchrun_names: bool = True) -> list[str]:
    """Return the lines of a node; `torchrun_names` also sets the variables by which `meshwise run` finds its nodes."""
    found = required(job)
    text = [f': "${{{name}:?{why}}}"' for name, why in found.items()]
    if job.nodes > 1:
        text += [f"export {name}={value}" for name, value in variables.items()]
        if job.starter == "node" and torchrun_names:
            text += ["export " + " ".join(f'PET_{name}="${name}"' for name in variables)]
    text += [f"export {name}={forms.shell_word(value)}" for name, value in job.environment.items()]
    text += [*others(job), *preflight(job)]
    shown = forms.shell_lines(command(job))
    shown[-1] += OTHER_HOSTS_ARGUMENTS if job.others else ""
    if job.starter == "once" and job.nodes > 1:
        return [*text, 'if [ "$NODE_RANK" = 0 ]; then', *(f"  {line}" for line in shown), "fi"]
    return [*text, *shown]


def others(job: Job) -> list[str]:
    """Return the line that sets the words of every node but the first."""
    if not job.others:
        return []
    return [f'OTHERS=(); [ "$NODE_RANK" = 0 ] || OTHERS=({" ".join(map(forms.shell_word, job.others))})']


def required(job: Job) -> dict[str, str]:
    """Return the variables that the user must set, with what they mean."""
    return {
        match[1]: match[2]
        for word in (*job.command, *job.environment.values())
        for match in forms.REQUIRED_VARIABLE.finditer(word)
    }


def exported(found: Mapping[str, str]) -> list[str]:
    """Return the lines that stop a script where something is not set, and pass it on to the nodes."""
    return [line for name, why in found.items() for line in (f': "${{{name}:?{why}}}"', f"export {name}")]


def is_cpu(job: Job) -> bool:
    """Return whether the processes run on CPUs."""
    return vendor(job) == "" or job.chip == "cpu"


def vendor(job: Job) -> str:
    """Return the vendor of the device; '' for a CPU or an unknown one."""
    try:
        chip = chips.find_chip(job.chip)
    except UserError:
        return ""
    return "" if chip.kind == "cpu" else chip.vendor


def resources(job: Job) -> dict[str, int]:
    """Return the accelerators of a node as Kubernetes counts them."""
    maker = vendor(job)
    return {RESOURCES.get(maker, "nvidia.com/gpu"): job.devices_per_node} if maker else {}


def time_limit(hours: float) -> str:
    """Return hours as Slurm writes them: D-HH:MM:SS."""
    minutes = max(1, round(hours * 60))
    return f"{minutes // 1440}-{minutes // 60 % 24:02d}:{minutes % 60:02d}:00"
