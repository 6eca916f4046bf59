"""NVIDIA Dynamo: a DynamoGraphDeployment with a frontend and vLLM workers. A worker's words are vLLM's, so `check` reads it as vLLM."""

from meshwise.export import forms
from meshwise.export.launch import manifests
from meshwise.export.program import Setup, Written
from meshwise.export.serve import vllm
from meshwise.export.serve.declared import serving

TITLE, VERSION = "Dynamo", "v1alpha1"
FILE = "deployment.yaml"


def write(given: Setup) -> Written:
    """Return the deployment: one worker per copy, each over as many pods as it has hosts."""
    words = ["--model", given.model, *forms.flag_words(vllm.PROGRAM.settings(vllm.wording(given) | {"copies": 1}))]
    container = {"image": manifests.IMAGE, "command": ["python3", "-m", "dynamo.vllm"], "args": words}
    worker = {
        "componentType": "worker",
        "replicas": given.whole("replicas"),
        "resources": {"limits": {"gpu": str(-(-given.whole("tp") * given.whole("pp") // given.whole("nodes")))}},
        "extraPodSpec": {"mainContainer": container},
    }
    worker |= {"multinode": {"nodeCount": given.whole("nodes")}} if given.whole("nodes") > 1 else {}
    frontend = {"componentType": "frontend", "replicas": 1, "extraPodSpec": {"mainContainer": {"image": manifests.IMAGE}}}
    name = "".join(letter if letter.isalnum() else "-" for letter in given.model.rpartition("/")[2].lower()).strip("-")
    document = {
        "apiVersion": "nvidia.com/v1alpha1",
        "kind": "DynamoGraphDeployment",
        "metadata": {"name": name},
        "spec": {"services": {"Frontend": frontend, "VllmWorker": worker}},
    }
    return Written({FILE: manifests.text(given.header, document)}, ("kubectl", "apply", "-f", FILE), starter="once")


PROGRAM = serving("dynamo", TITLE, VERSION, form="yaml", write=write, check=f"kubectl apply --dry-run=server -f {FILE}")
