"""A policy that was replayed becomes a manifest that Kubernetes reads."""

from dataclasses import replace
from pathlib import Path

import pytest

import meshwise as mw
from meshwise import api
from meshwise.errors import UserError
from meshwise.replay.answer import Replayed
from support.command import Run, refused

ROWS = [(float(i), 500, 20) for i in range(60)]
yaml = pytest.importorskip("yaml")


def replayed(policy: str, model: str = "llama-3.1-8b:fp8", on: str = "h100-sxm") -> Replayed:
    return mw.replay(model, on=on, trace=ROWS, autoscale=policy, copies="1..4", cooldown="2min", look="30s")


@pytest.mark.parametrize(("policy", "metric", "threshold"), [
    ("queue:4", "sum(vllm:num_requests_waiting)", "4"), ("kv:70%", "avg(vllm:kv_cache_usage_perc)", "0.7"),
    ("busy:32", "sum(vllm:num_requests_waiting) + sum(vllm:num_requests_running)", "32"), ("ttft:1s", "histogram_quantile(0.95", "1"),
])  # fmt: skip
def test_kedas_object_has_the_policy_its_bounds_and_its_times(policy: str, metric: str, threshold: str) -> None:
    table = yaml.safe_load(api.manifest(replayed(policy)))
    spec = table["spec"]
    assert (table["kind"], spec["minReplicaCount"], spec["maxReplicaCount"]) == ("ScaledObject", 1, 4)
    assert (spec["pollingInterval"], spec["cooldownPeriod"]) == (30, 120)
    (trigger,) = spec["triggers"]
    assert trigger["metadata"]["query"].startswith(metric)
    assert trigger["metadata"]["threshold"] == threshold
    hpa = yaml.safe_load(api.manifest(replayed(policy), "hpa"))
    (seen,) = hpa["spec"]["metrics"]
    assert threshold in seen["external"]["target"].values()


def test_the_name_of_a_trace_cannot_end_the_comment_of_a_manifest() -> None:
    """What follows a line break would be applied to the cluster."""
    result = replayed("queue:4")
    named = replace(result, trace=replace(result.trace, name="a\n---\nkind: Pod\n\x1b[31m#"))
    for kind in ("keda", "hpa"):
        (only,) = yaml.safe_load_all(api.manifest(named, kind))
        assert only["kind"] != "Pod"


def test_a_schedule_is_kedas_cron_alone() -> None:
    result = replayed("schedule:0=1,8.5=3")
    triggers = yaml.safe_load(api.manifest(result))["spec"]["triggers"]
    assert [one["metadata"]["start"] for one in triggers] == ["0 0 * * *", "30 8 * * *"]
    assert [one["metadata"]["end"] for one in triggers] == ["30 8 * * *", "0 0 * * *"]
    with pytest.raises(UserError, match="has no schedule"):
        api.manifest(result, "hpa")


def test_what_cannot_be_said_is_refused(run: Run, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="needs a policy"):
        api.manifest(mw.replay("llama-3.1-8b:fp8", on="h100-sxm", trace=ROWS))
    with pytest.raises(UserError, match=r"llama\.cpp exports no metric"):
        api.manifest(replayed("kv:50%", "llama-3.1-8b:q4_k_m", "rtx4090"))
    file = tmp_path / "scaled.yaml"
    words = [
        "replay",
        "llama-3.1-8b:fp8",
        "--on",
        "h100-sxm",
        "--make",
        "batch",
        "--rate",
        "1/s",
        "--hours",
        "0.02",
        "--manifest",
        str(file),
    ]
    assert run(*words, "--autoscale", "queue:4", "--copies", "1..4").code == 0
    assert "ScaledObject" in file.read_text()
    assert "expected one of keda, hpa" in refused(run(*words, "--manifest-of", "helm"))
