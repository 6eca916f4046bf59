"""NVIDIA Dynamo: a DynamoGraphDeployment with a frontend and workers of vLLM or SGLang. A worker's words are those of its engine, and
`check` reads it as that engine."""

from meshwise.export import forms
from meshwise.export.launch import manifests
from meshwise.export.program import Setup, Written
from meshwise.export.serve import sglang, vllm
from meshwise.export.serve.declared import serving

TITLE, VERSION = "Dynamo", "v1alpha1"
FILE = "deployment.yaml"


def _worker(given: Setup) -> tuple[str, list[str]]:
    """Return the module of a worker and its words: SGLang's for a plan that was made for it, else vLLM's. Dynamo itself makes copies."""
    apart = bool(given.values.get("attention_dp"))
    if given.plan.framework == "sglang":
        words = sglang.wording(given) | ({} if apart else {"copies": 1})
        return "dynamo.sglang", forms.flag_words(sglang.PROGRAM.settings(words))
    words = vllm.wording(given) | ({} if apart else {"copies": 1})
    return "dynamo.vllm", ["--model", given.model, *forms.flag_words(vllm.PROGRAM.settings(words))]


def write(given: Setup) -> Written:
    """Return the deployment: one worker per copy, each over as many pods as it has hosts."""
    module, words = _worker(given)
    container = {"image": manifests.IMAGE, "command": ["python3", "-m", module], "args": words}
    worker = {
        "componentType": "worker",
        "replicas": given.whole("replicas"),
        "resources": {"limits": {"gpu": str(-(-given.whole("tp") * given.whole("pp") // given.whole("nodes")))}},
        "extraPodSpec": {"mainContainer": container},
    }
    worker |= {"multinode": {"nodeCount": given.whole("nodes")}} if given.whole("nodes") > 1 else {}
    frontend = {"componentType": "frontend", "replicas": 1, "extraPodSpec": {"mainContainer": {"image": manifests.IMAGE}}}
    name = "".join(letter if letter.isalnum() else "-" for letter in given.model.rpartition("/")[2].lower()).strip("-")
    title = "SglangWorker" if module == "dynamo.sglang" else "VllmWorker"
    document = {
        "apiVersion": "nvidia.com/v1alpha1",
        "kind": "DynamoGraphDeployment",
        "metadata": {"name": name},
        "spec": {"services": {"Frontend": frontend, title: worker}},
    }
    return Written({FILE: manifests.text(given.header, document)}, ("kubectl", "apply", "-f", FILE), starter="once")


PROGRAM = serving(
    "dynamo", TITLE, VERSION, engine="vllm", form="yaml", write=write, check=f"kubectl apply --dry-run=server -f {FILE}"
)
