"""TrainJob of Kubeflow Trainer v2, on its runtime `torch-distributed`, which sets torchrun's variables."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from meshwise.programs.launch import manifests, script
from meshwise.programs.program import Job, Launch, Launcher
from meshwise.programs.source import Source

FILE = "train.yaml"
RUNTIME = "torch-distributed"


def write(job: Job) -> dict[str, str]:
    """Return the manifest, with the program's files in a ConfigMap."""
    job = replace(job, name=manifests.object_name(job))
    variables = script.variables('"$PET_NNODES"', '"$PET_NODE_RANK"', '"$PET_MASTER_ADDR"', '"$PET_MASTER_PORT"')
    held = manifests.container(job, variables, torchrun_names=False)
    trainer: dict[str, Any] = {"numNodes": job.nodes, "numProcPerNode": job.devices_per_node}
    trainer |= {name: held[name] for name in ("image", "command", "args", "env") if name in held}
    trainer |= {"resourcesPerNode": held["resources"]} if "resources" in held else {}
    spec: dict[str, Any] = {"runtimeRef": {"name": RUNTIME, "kind": "ClusterTrainingRuntime"}, "trainer": trainer}
    spec |= {"runtimePatches": [_patch(job, held)]} if job.files else {}
    document = manifests.document("trainer.kubeflow.org/v1alpha1", "TrainJob", job.name, spec)
    return {FILE: manifests.text(job.header, *manifests.config_map(job), document)}


def _patch(job: Job, held: Mapping[str, Any]) -> dict[str, Any]:
    """Return the patch that mounts the program's files into the runtime's pods."""
    pod = {"containers": [{"name": "node", "volumeMounts": held["volumeMounts"]}], "volumes": manifests.pod(job, held)["volumes"]}
    jobs = [{"name": "node", "template": {"spec": {"template": {"spec": pod}}}}]
    return {"manager": "meshwise.export", "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": jobs}}}}


def read(source: Source) -> Launch | None:
    """Return what a TrainJob starts."""
    return manifests.read(source, ("TrainJob",), [("spec", "trainer", "numNodes")])


LAUNCHER = Launcher(
    name="trainjob", title="Kubeflow TrainJob", version="v1alpha1", write=write, start=f"kubectl apply -f {FILE}",
    read=read, check=f"kubectl apply --dry-run=server -f {FILE}",
)  # fmt: skip
