"""NVIDIA Dynamo: a DynamoGraphDeployment with a frontend and workers of vLLM or SGLang, which `check` reads as that engine."""

from meshwise.programs import forms
from meshwise.programs.launch import manifests
from meshwise.programs.program import Setup, Written
from meshwise.programs.serve import pools, sglang, vllm
from meshwise.programs.serve.declared import serving

TITLE, VERSION = "Dynamo", "v1alpha1"
FILE = "deployment.yaml"
TITLES = {"dynamo.vllm": "Vllm", "dynamo.sglang": "Sglang"}


def _engine_words(given: Setup, framework: str, role: pools.Role | None) -> tuple[str, list[str]]:
    """Return the module of a worker and its words, SGLang's for a plan made for it, else vLLM's; `role`: its pool, if any."""
    apart = bool(given.values.get("attention_dp"))
    if framework == "sglang":
        words = sglang.wording(given) | ({} if apart else {"copies": 1})
        words |= {"pool": role, "transfer": "nixl"} if role else {}
        return "dynamo.sglang", forms.flag_words(sglang.PROGRAM.settings(words))
    words = vllm.wording(given) | ({} if apart else {"copies": 1})
    flags = forms.flag_words(vllm.PROGRAM.settings(words))
    return "dynamo.vllm", ["--model", given.model, *flags, *(["--is-prefill-worker"] if role == "prefill" else [])]


def _service(given: Setup, framework: str, role: pools.Role | None = None) -> tuple[str, dict[str, object]]:
    """Return the name and the description of the workers of one pool: one for each replica, over as many pods as it has hosts."""
    module, words = _engine_words(given, framework, role)
    worker: dict[str, object] = {"componentType": "worker"}
    worker |= {"subComponentType": role} if role else {}
    worker |= {
        "replicas": given.whole("replicas"),
        "resources": {"limits": {"gpu": str(-(-given.whole("tp") * given.whole("pp") // given.whole("nodes")))}},
        "extraPodSpec": {"mainContainer": {"image": manifests.IMAGE, "command": ["python3", "-m", module], "args": words}},
    }
    worker |= {"multinode": {"nodeCount": given.whole("nodes")}} if given.whole("nodes") > 1 else {}
    return f"{TITLES[module]}{(role or '').capitalize()}Worker", worker


def write(given: Setup) -> Written:
    """Return the deployment: a frontend, and the workers of one pool or of two."""
    subject, framework = given.plan, given.plan.framework
    frontend = {"componentType": "frontend", "replicas": 1, "extraPodSpec": {"mainContainer": {"image": manifests.IMAGE}}}
    found = [_service(given, framework)]
    if subject.layout.prefill:
        found = [_service(one, framework, role) for role, one in pools.setups(subject.q, subject.layout).items()]
    name = "".join(letter if letter.isalnum() else "-" for letter in given.model.rpartition("/")[2].lower()).strip("-")
    services = {"Frontend": frontend, **dict(found)}
    document = manifests.document("nvidia.com/v1alpha1", "DynamoGraphDeployment", name, {"services": services})
    return Written({FILE: manifests.text(given.header, document)}, ("kubectl", "apply", "-f", FILE), starter="once")


PROGRAM = serving(
    "dynamo", TITLE, VERSION, engine="vllm", form="yaml", write=write, pools=True,
    check=f"kubectl apply --dry-run=server -f {FILE}",
)  # fmt: skip
