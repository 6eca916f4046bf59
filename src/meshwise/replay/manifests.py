"""A policy that was replayed as a manifest of Kubernetes: KEDA's ScaledObject, or a HorizontalPodAutoscaler."""

from meshwise.errors import UserError
from meshwise.replay.answer import Replayed
from meshwise.replay.ask import copies_of
from meshwise.replay.engine import policy as policies
from meshwise.replay.engine.policy import Policy

METRICS = {
    "vllm": {"waiting": "vllm:num_requests_waiting", "running": "vllm:num_requests_running", "kv": "vllm:kv_cache_usage_perc",
             "ttft": "vllm:time_to_first_token_seconds_bucket", "done": "vllm:request_success_total"},
    "sglang": {"waiting": "sglang:num_queue_reqs", "running": "sglang:num_running_reqs", "kv": "sglang:token_usage",
               "ttft": "sglang:time_to_first_token_seconds_bucket", "done": "sglang:num_requests_total"},
    "llama.cpp": {"waiting": "llamacpp:requests_deferred", "running": "llamacpp:requests_processing"},
}  # fmt: skip
"""Names of the metrics that engines export to Prometheus, from their documentation."""
MINUTE = "1m"


def manifest(result: Replayed, kind: str) -> str:
    """Return the policy of a replay as YAML. UserError for one that the tool, or the engine's metrics, cannot say."""
    if not result.policy:
        raise UserError("a manifest needs a policy: --autoscale busy:32 --copies 1..8")
    low, high = copies_of(result.ask.copies)
    policy = policies.read(result.ask.autoscale, least=low, most=high, interval=result.ask.look, cooldown=result.ask.cooldown)
    if policy.kind == "static":
        raise UserError("a constant number of copies needs no autoscaler: set replicas of the Deployment")
    name = "".join(c if c.isalnum() else "-" for c in result.ask.model.partition(":")[0].rpartition("/")[2].lower()).strip("-")
    head = [
        f"# {result.policy}, replayed on {result.trace.name}: p95 of TTFT {result.figures.ttft.p95:.3g} s, "
        f"{result.figures.copies:.2f} copies on average",
        f"# {result.command}",
    ]
    body = _keda(policy, name, result.engine) if kind == "keda" else _hpa(policy, name, result.engine)
    safe = ("".join(c if c.isprintable() else " " for c in line) for line in head)  # a name cannot end the comment
    return "\n".join([*safe, *body]) + "\n"


def _metric(engine: str, name: str) -> str:
    known = METRICS.get(engine, {})
    if name not in known:
        raise UserError(
            f"{engine} exports no metric that this policy needs; it has {', '.join(sorted(known)) or 'none that are known'}"
        )
    return known[name]


def query(policy: Policy, engine: str) -> tuple[str, str, bool]:
    """Return the query of Prometheus for a policy, its threshold, and whether that is one for each copy (AverageValue)."""
    if policy.kind == "kv":
        return f"avg({_metric(engine, 'kv')})", f"{policy.target:g}", False
    if policy.kind == "ttft":
        return f"histogram_quantile(0.95, sum(rate({_metric(engine, 'ttft')}[{MINUTE}])) by (le))", f"{policy.target:g}", False
    if policy.kind == "rate":
        return f"sum(rate({_metric(engine, 'done')}[{MINUTE}]))", f"{policy.target:g}", True
    waiting = f"sum({_metric(engine, 'waiting')})"
    asked = waiting if policy.kind == "queue" else f"{waiting} + sum({_metric(engine, 'running')})"
    return asked, f"{policy.target:g}", True


def _keda(policy: Policy, name: str, engine: str) -> list[str]:
    """Return a ScaledObject: a query of Prometheus, or hours of the day."""
    lines = [
        "apiVersion: keda.sh/v1alpha1", "kind: ScaledObject", "metadata:", f"  name: {name}", "spec:", "  scaleTargetRef:",
        f"    name: {name}", f"  minReplicaCount: {policy.least}", f"  maxReplicaCount: {policy.most}",
        f"  pollingInterval: {policy.interval:.0f}", f"  cooldownPeriod: {policy.cooldown:.0f}", "  advanced:",
        "    horizontalPodAutoscalerConfig:", "      behavior:", "        scaleDown:",
        f"          stabilizationWindowSeconds: {policy.cooldown:.0f}", "  triggers:",
    ]  # fmt: skip
    if policy.kind == "schedule":
        ends = [*(hour for hour, _ in policy.hours[1:]), policy.hours[0][0]]
        for (begin, copies), end in zip(policy.hours, ends, strict=True):
            lines += [
                "    - type: cron", "      metadata:", "        timezone: Etc/UTC", f'        start: "{_cron(begin)}"',
                f'        end: "{_cron(end)}"', f'        desiredReplicas: "{copies}"',
            ]  # fmt: skip
        return lines
    asked, threshold, each = query(policy, engine)
    return [
        *lines, "    - type: prometheus", f"      metricType: {'AverageValue' if each else 'Value'}", "      metadata:",
        "        serverAddress: http://prometheus-operated.monitoring.svc:9090", f"        query: '{asked}'",
        f'        threshold: "{threshold}"',
    ]  # fmt: skip


def _cron(hour: float) -> str:
    return f"{round(hour % 1 * 60)} {int(hour)} * * *"


def _hpa(policy: Policy, name: str, engine: str) -> list[str]:
    """Return a HorizontalPodAutoscaler on an external metric, which an adapter must serve by its query."""
    if policy.kind == "schedule":
        raise UserError("a HorizontalPodAutoscaler has no schedule; KEDA has (--manifest-of keda)")
    asked, threshold, each = query(policy, engine)
    return [
        f"# the adapter must serve meshwise_{policy.kind} as: {asked}", "apiVersion: autoscaling/v2", "kind: HorizontalPodAutoscaler",
        "metadata:", f"  name: {name}", "spec:", "  scaleTargetRef:", "    apiVersion: apps/v1", "    kind: Deployment",
        f"    name: {name}",
        f"  minReplicas: {policy.least}", f"  maxReplicas: {policy.most}", "  behavior:", "    scaleDown:",
        f"      stabilizationWindowSeconds: {policy.cooldown:.0f}", "  metrics:", "    - type: External", "      external:",
        "        metric:", f"          name: meshwise_{policy.kind}", "        target:",
        *(("          type: AverageValue", f'          averageValue: "{threshold}"') if each
          else ("          type: Value", f'          value: "{threshold}"')),
    ]  # fmt: skip
