"""Preflight: what was seen of a cluster, what was measured, and what is wrong with it."""

import shlex
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from meshwise.run.preflight.cluster import Found
from meshwise.run.preflight.verdict import Finding, Measured, node_rates

NOTHING = Measured(())


@dataclass(frozen=True)
class Preflight:
    """A cluster before a run."""

    found: Found
    folder: Path
    cluster_file: Path | None
    findings: tuple[Finding, ...] = ()
    measured: Measured = NOTHING
    expected: dict[str, float] | None = None  # predicted rates by figure; None where nothing was measured
    notes: tuple[str, ...] = ()
    stopped: bool = False

    @property
    def exit_code(self) -> int:
        """1 where something is sick."""
        return int(any(finding.level == "sick" for finding in self.findings))

    @property
    def exclude(self) -> list[str]:
        """Nodes to leave out: each sick one, and of a slow link between two the one whose other links are slower."""
        nodes: dict[str, None] = {}
        rates = node_rates(self.measured)
        for finding in self.findings:
            if finding.level == "sick" and finding.against != "--on" and not set(finding.nodes) & set(nodes):
                nodes[min(finding.nodes, key=lambda host: rates.get(host, {}).get("send between", 0.0))] = None
        return [*nodes, *(node.host for node in self.found.nodes if node.state != "ready" and node.host not in nodes)]

    def advice(self) -> list[str]:
        """Return commands that leave sick nodes out."""
        if not self.exclude:
            return []
        hosts = [shlex.quote(host) for host in self.exclude]
        return [f"srun --exclude={','.join(hosts)}", *(f"kubectl cordon {host}" for host in hosts)]

    def rows(self) -> list[dict[str, Any]]:
        return [{"node": host, **rates} for host, rates in node_rates(self.measured).items()]

    def to_json(self) -> dict[str, Any]:
        """Return everything but the single rows, which are in the folder."""
        return {
            "facts": [{"what": what, "value": value, "source": source} for what, value, source in self.found.facts()],
            "unseen": list(self.found.unseen), "cluster_file": str(self.cluster_file) if self.cluster_file else None,
            "nodes": self.rows(), "expected": self.expected or {},
            "findings": [asdict(one) | {"where": one.where} for one in self.findings],
            "exclude": self.exclude, "notes": list(self.notes), "stopped": self.stopped, "sick": bool(self.exit_code),
        }  # fmt: skip
