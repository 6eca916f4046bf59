"""Referees of launchers: Kubernetes' own schemas, Kubeflow's models and SkyPilot's parser take what is written, and refuse what is
misspelled.

Needs: kubernetes-validate kubeflow_trainer_api skypilot==0.14.1
"""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml

from meshwise.programs.program import Job, launchers
from support.every import check_every

WORDS = ("pretrain_gpt.py", "--tensor-model-parallel-size", "8", "--data-path", "${DATA_PATH:?set DATA_PATH: the data}")
JOBS = {
    "torchrun": Job("llama-3-70b", 4, 8, WORDS, header=("Made by a test",), chip="h100-sxm", environment={"A": "1"}),
    "one node": Job("llama-3-70b", 1, 8, WORDS, chip="a100-80gb-sxm"),
    "files": Job("llama-3-70b", 2, 8, WORDS, chip="mi300x", files={"ds.json": "{}\n"}),
    "serving": Job("llama", 2, 8, ("vllm", "serve", "x"), starter="node", chip="h200", others=("--headless",)),
}
VERSION = "1.35"


def documents(launcher: str, job: Job) -> list[dict[str, Any]]:
    (text,) = launchers()[launcher].write(job).values()
    return list(yaml.safe_load_all(text))


def misspelled(value: Any, key: str) -> Any:
    """Return a document in which one key is written wrong wherever it stands."""
    if isinstance(value, dict):
        return {f"{name}x" if name == key else name: misspelled(item, key) for name, item in value.items()}
    return [misspelled(item, key) for item in value] if isinstance(value, list) else value


def test_kubernetes_takes_the_pods_and_refuses_a_misspelled_key() -> None:
    validate = pytest.importorskip("kubernetes_validate", reason="pip install kubernetes-validate").validate

    def as_job(document: dict[str, Any]) -> dict[str, Any]:
        spec = document["spec"]
        if document["kind"] == "JobSet":
            return {
                "apiVersion": "batch/v1",
                "kind": "Job",
                "metadata": document["metadata"],
                "spec": spec["replicatedJobs"][0]["template"]["spec"],
            }
        pod = spec["leaderWorkerTemplate"]["workerTemplate"]["spec"] | {"restartPolicy": "Never"}
        return {"apiVersion": "batch/v1", "kind": "Job", "metadata": document["metadata"], "spec": {"template": {"spec": pod}}}

    def check(launcher: str, name: str) -> None:
        *maps, own = documents(launcher, JOBS[name])
        for document in (*maps, as_job(own)):
            validate(document, VERSION, strict=True)
        for key in ("containers", "image", "args", "volumeMounts", "mountPath"):
            with pytest.raises(Exception, match=r"."):
                validate(misspelled(as_job(own), key), VERSION, strict=True)

    check_every(check, [(launcher, name) for launcher in ("jobset", "leaderworkerset") for name in JOBS])


def test_kubeflow_keeps_every_key_of_a_trainjob_and_a_jobset() -> None:
    """Its models drop unknown keys in silence, so that what survives a round trip has none."""
    models = pytest.importorskip("kubeflow_trainer_api.models", reason="pip install kubeflow_trainer_api")
    kinds = {"trainjob": models.TrainerV1alpha1TrainJob, "jobset": models.JobsetV1alpha2JobSet}

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: plain(item) for key, item in value.items() if item is not None}
        return [plain(item) for item in value] if isinstance(value, list) else value

    def check(launcher: str, name: str) -> None:
        *_, document = documents(launcher, JOBS[name])
        assert plain(kinds[launcher].from_dict(document).to_dict()) == document
        wrong = misspelled(document, "replicatedJobs" if launcher == "jobset" else "numNodes")
        with suppress(ValueError):  # a missing key that the model requires
            assert plain(kinds[launcher].from_dict(wrong).to_dict()) != wrong

    check_every(check, [(launcher, name) for launcher in kinds for name in JOBS])


def test_skypilot_takes_a_task_and_refuses_a_misspelled_key(tmp_path: Path) -> None:
    sky = pytest.importorskip("sky", reason="pip install skypilot")

    def check(name: str) -> None:
        (text,) = launchers()["skypilot"].write(JOBS[name]).values()
        assert text.count("\n") > 5
        document = yaml.safe_load(text)
        document["envs"] = dict.fromkeys(document.get("envs", {}), "set")
        document.pop("workdir")
        file = tmp_path / "task.yaml"
        file.write_text(yaml.safe_dump(document))
        task = sky.Task.from_yaml(str(file))
        assert task.num_nodes == JOBS[name].nodes
        (resource,) = task.resources
        assert list((resource.accelerators or {}).values()) == [8]
        for key in ("num_nodes", "run", "accelerators"):
            file.write_text(yaml.safe_dump(misspelled(document, key)))
            with pytest.raises(Exception, match=r"."):
                sky.Task.from_yaml(str(file))

    check_every(check, [(name,) for name in JOBS])
