"""JobSet: a Kubernetes job with one pod per node, whose first pod the others find by its name."""

from dataclasses import replace

from meshwise.programs.launch import containers, manifests, script
from meshwise.programs.program import Job, Launch, Launcher
from meshwise.programs.source import Source

FILE = "train.yaml"
KINDS = ("JobSet", "Job", "PyTorchJob", "MPIJob", "Deployment", "StatefulSet", "Pod", "RayCluster", "RayJob", "InferenceService")


def write(job: Job) -> dict[str, str]:
    """Return the manifest, with the program's files in a ConfigMap."""
    job = replace(job, name=manifests.object_name(job))
    variables = script.variables(str(job.nodes), '"$JOB_COMPLETION_INDEX"', f"{job.name}-node-0-0.{job.name}")
    held = manifests.container(job, variables)
    template = {
        "parallelism": job.nodes, "completions": job.nodes, "completionMode": "Indexed", "backoffLimit": 0,
        "template": {"spec": manifests.pod(job, held)},
    }  # fmt: skip
    spec = {
        "network": {"enableDNSHostnames": True, "subdomain": job.name},
        "failurePolicy": {"maxRestarts": 10},
        "replicatedJobs": [{"name": "node", "replicas": 1, "template": {"spec": template}}],
    }
    document = manifests.document("jobset.x-k8s.io/v1alpha2", "JobSet", job.name, spec)
    return {FILE: manifests.text(job.header, *manifests.config_map(job), document)}


def read(source: Source) -> Launch | None:
    """Return what a JobSet starts, or another file that starts containers: any kind of Kubernetes, compose, Helm values, Ray Serve."""
    template = ("spec", "replicatedJobs", "0", "template", "spec")
    found = manifests.read(source, ("JobSet",), [("spec", "replicatedJobs", "0", "replicas"), (*template, "parallelism")])
    found = found or manifests.read_services(source)
    if found is not None:
        return found
    replicas = [("spec", "pytorchReplicaSpecs", "Worker", "replicas"), ("spec", "parallelism")]
    return manifests.read(source, KINDS, replicas) or containers.read(source)


LAUNCHER = Launcher(
    name="jobset", title="JobSet", version="v1alpha2", write=write, start=f"kubectl apply -f {FILE}", read=read,
    check=f"kubectl apply --dry-run=server -f {FILE}",
)  # fmt: skip
