"""LeaderWorkerSet: groups of pods, each of which serves one copy of a model over several hosts, or trains."""

from dataclasses import replace

from meshwise.programs.launch import manifests, script
from meshwise.programs.program import Job, Launch, Launcher
from meshwise.programs.source import Source

FILE = "serve.yaml"


def write(job: Job) -> dict[str, str]:
    """Return the manifest, with the program's files in a ConfigMap."""
    job = replace(job, name=manifests.object_name(job))
    variables = script.variables('"$LWS_GROUP_SIZE"', '"$LWS_WORKER_INDEX"', '"$LWS_LEADER_ADDRESS"')
    pod = manifests.pod(job, manifests.container(job, variables))
    del pod["restartPolicy"]  # pods of a LeaderWorkerSet always restart
    group = {"size": job.nodes, "restartPolicy": "RecreateGroupOnPodRestart", "workerTemplate": {"spec": pod}}
    spec = {"replicas": 1, "leaderWorkerTemplate": group}
    document = manifests.document("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", job.name, spec)
    return {FILE: manifests.text(job.header, *manifests.config_map(job), document)}


def read(source: Source) -> Launch | None:
    """Return what a LeaderWorkerSet starts; the size of a group counts its nodes."""
    return manifests.read(source, ("LeaderWorkerSet",), [("spec", "leaderWorkerTemplate", "size")])


LAUNCHER = Launcher(
    name="leaderworkerset", title="LeaderWorkerSet", version="v1", write=write, start=f"kubectl apply -f {FILE}", read=read,
    check=f"kubectl apply --dry-run=server -f {FILE}",
)  # fmt: skip
