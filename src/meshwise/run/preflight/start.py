"""A preflight from its question to its result: look, measure, judge, remember."""

import json
import os
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from meshwise.calibrate.train import probe
from meshwise.catalogue import clusters, files, records
from meshwise.errors import DoesNotFit, UserError, quoted
from meshwise.run.callbacks import Progress, Say, ignore
from meshwise.run.packages import require_torch
from meshwise.run.preflight import cluster, history, jobs, predicted, tools, verdict
from meshwise.run.preflight.ask import PreflightAsk
from meshwise.run.preflight.cluster import Found
from meshwise.run.preflight.result import Preflight
from meshwise.run.preflight.tools import NodeFacts
from meshwise.run.preflight.verdict import Measured, Row
from meshwise.run.probe import store
from meshwise.run.train import hosts, lock
from meshwise.run.train.ask import TrainRun

CALIBRATION = "preflight"  # name of the chip and the calibration that a preflight writes
BEFORE_SECONDS = 20.0  # seconds that a preflight before a run measures
MAX_ROW_CHARS = 100_000
UNPRINTABLE = re.compile(r"\\(?:[\\bfnrt]|u[0-9a-f]{4})")  # JSON's escapes of all that is not ASCII
FIELDS: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("kind", "host", "name", "what", "why", "codes"), lambda value: isinstance(value, str) and len(value) < 1000
        and value.isprintable()),
    **dict.fromkeys(("rank", "node", "nodes", "local", "cores", "from", "to"),
        lambda value: type(value) is int and 0 <= value < 2**31),
    **dict.fromkeys(("rate", "latency", "seconds"), lambda value: type(value) in (int, float) and 0 < value < 1e30),
    "load": lambda value: type(value) in (int, float) and 0 <= value < 1e30, "device": lambda value: value in ("cpu", "cuda"),
}  # fmt: skip
"""What a field of a row may hold."""
NEEDED = {
    "machine": ("host", "local", "device", "name", "nodes", "cores"), "absent": ("why",), "missing": ("what", "why"), "xid": ("codes",),
    "figure": ("what", "rate"), "link": ("what", "from", "to", "rate", "latency"), "again": ("what", "rate", "usual"), "facts": ("seen",),
}  # fmt: skip
"""Fields that a row must have beside its rank, by its kind."""


def preflight(ask: PreflightAsk, *, say: Say = ignore, progress: Progress = ignore) -> Preflight | None:
    """Look at this machine or cluster, measure it, and judge. None on a node whose rows another one judges."""
    if ask.read:
        return judged(ask, Path(ask.read), None)
    folder = Path(ask.out)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {ask.out}: cannot be written ({error.strerror})") from None
    lock.refuse_links(folder)
    if ask.facts or ask.launcher:
        listed = look(ask)
        wrong = _not_as_said(clusters.find_cluster(ask.on), listed) if ask.on else ()
        return (
            Preflight(listed, folder, listed.write(folder), tuple(wrong)) if ask.facts else _submitted(ask, listed, folder, say)
        )
    own = tools.this_node()
    here = hosts.find(os.environ, 0, nodes=ask.nodes or "", node_rank=ask.node_rank, rendezvous=ask.rendezvous)
    if here.worker:
        said = "start one preflight a node (--ntasks-per-node=1), or -m meshwise.workers.probe.health"
        raise UserError(f"every worker was started: {said}")
    require_torch("preflight")
    jobs.devices(ask)
    if here.rank == 0:
        _clear(folder)
    try:
        jobs.measure(ask, here, own, progress)
    except KeyboardInterrupt:
        if here.rank:
            raise
        return replace(judged(ask, folder, own), stopped=True)
    return judged(ask, folder, own) if here.rank == 0 else None


def check_before(run: TrainRun, say: Say) -> None:
    """Look at the machines of a run before it starts. DoesNotFit where something is sick."""
    most = hosts.node_range(str(run.nodes))[1] if run.nodes else None
    folder = run.folder / "preflight"
    ask = PreflightAsk(
        seconds=BEFORE_SECONDS, device=run.device, nodes=most, node_rank=run.node_rank, rendezvous=run.rendezvous, out=str(folder)
    )
    done = preflight(ask, say=say)
    for finding in done.findings if done else ():
        say(f"preflight: {finding.level}: {finding.where}: {finding.message}")
    if done and done.exit_code:
        left_out = ", ".join(done.exclude)
        raise DoesNotFit(f"preflight: leave out {left_out}, or train anyway without --preflight; {folder} has all rows")


def _clear(folder: Path) -> None:
    """Remove the rows of an earlier preflight."""
    for old in (*folder.glob("rank-*.jsonl"), folder / "rows.jsonl", folder / jobs.HOSTS):
        old.unlink(missing_ok=True)


def look(ask: PreflightAsk) -> Found:
    """Return what tools show of the cluster: Slurm's nodes, else Kubernetes', else this machine."""
    own, unseen = tools.this_node(), list[str]()
    for name, lister in (("slurm", lambda: tools.slurm(partition=ask.partition)), ("kubernetes", tools.kubernetes)):
        if ask.launcher not in ("", name):
            continue
        try:
            nodes = lister()
        except UserError as error:
            if ask.launcher and (ask.launcher == "slurm" or not ask.nodes):
                raise UserError(f"--with {ask.launcher}: {error}") from None
            unseen.append(f"nodes by {name}: {error}")
            continue
        if nodes:
            network = {"network": own.network, "network_name": own.network_name}
            return cluster.found([replace(node, **network) if node.host == own.host else node for node in nodes], unseen)
    return cluster.found([own], [*unseen, *own.unseen])


def _submitted(ask: PreflightAsk, listed: Found, folder: Path, say: Say) -> Preflight:
    """Write the job of a launcher; submit it to Slurm and judge its rows."""
    ready = [node for node in listed.nodes if node.state == "ready"]
    if not ready:
        raise UserError(f"--with {ask.launcher}: no node is ready")
    script = jobs.write(ask, ask.nodes or len(ready), ask.ranks or listed.usual.devices, listed.chip)
    if ask.launcher == "kubernetes":
        then = f"kubectl apply -f {script}; judge with: meshwise preflight --read FOLDER"
        note = f"wrote {script}; name an image in it, then: {then}"
        seen = "kubectl get nodes" in listed.usual.sources.values()  # else this machine is shown, which is none of the cluster's
        return Preflight(listed, folder, listed.write(folder) if seen else None, notes=(note,))
    _clear(folder)
    try:
        jobs.submit_job(script, say)
    except KeyboardInterrupt:
        return replace(judged(ask, folder, None), stopped=True)
    return judged(ask, folder, None, listed)


def read_rows(folder: Path) -> list[Row]:
    """Read the rows of a folder: those that the first rank gathered, and of ranks that it could not hear their own."""
    whole = _rows(folder / "rows.jsonl")
    known = {row["rank"] for row in whole if row["kind"] == "machine"}
    heard = {(row["rank"], row["kind"]) for row in whole if row["rank"] in known}
    parts = [row for path in sorted(folder.glob("rank-*.jsonl")) for row in _rows(path)]
    rows = [*whole, *(row for row in parts if (row["rank"], row["kind"]) not in heard)]
    known = {row["rank"] for row in rows if row["kind"] == "machine"}
    return [
        row
        for row in rows
        if row["kind"] in ("absent", "missing") or {row.get(end, row["rank"]) for end in ("rank", "from", "to")} <= known
    ]


def _rows(path: Path) -> list[Row]:
    rows: list[Row] = []
    for number, line in enumerate(files.text_of(path).splitlines() if path.is_file() else (), 1):
        row = _row(line)
        if row is None:
            raise UserError(f"{path.name}, line {number}: not a row of a preflight: {quoted(line)}")
        rows.append(row)
    return rows


def _row(line: str) -> Row | None:
    """Read a row; None for anything else."""
    try:
        row: Any = json.loads(line[:MAX_ROW_CHARS])
        sound = all(holds(row[name]) for name, holds in FIELDS.items() if name in row)
        needed = ("kind", "rank", "node", *NEEDED.get(row["kind"], ()))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None
    return cast(Row, row) if sound and all(name in row for name in needed) else None


def judged(ask: PreflightAsk, folder: Path, own: NodeFacts | None, listed: Found | None = None) -> Preflight:
    """Judge the rows of a folder; write cluster.toml, a calibration, and the history of nodes in which nothing was found."""
    measured = Measured(tuple(_named(read_rows(folder), folder)))
    if not measured.of("machine"):
        raise UserError(f"{folder}: no rows of a preflight")
    seen = _seen(measured, own, listed)
    on = clusters.find_cluster(ask.on) if ask.on else seen.cluster()
    expected = predicted.rates(on) if on else {}
    findings = verdict.judge(measured, expected)
    wrong = [] if not ask.on or on is None else _not_as_said(on, seen)
    ill = {host for finding in findings for host in finding.nodes}
    notes = [*_rest(measured), *([] if ask.read else _remember(measured, ill))]
    if seen.chip == "cpu" and (files.user_folder() / "chips" / f"{CALIBRATION}.toml").is_file():
        seen = replace(seen, chip=CALIBRATION)
    path = None if ask.read else seen.write(folder)
    done = Preflight(seen, folder, path, (*wrong, *findings), measured, expected, tuple(notes))
    if not ask.read:
        files.write(folder / "verdict.json", json.dumps(done.to_json(), indent=1) + "\n")
    return done


def _named(rows: list[Row], folder: Path) -> list[Row]:
    """Add the names of nodes that never came, as Slurm listed them when the job began."""
    path = folder / jobs.HOSTS
    names = files.text_of(path).split() if path.is_file() else []
    return [row | ({"host": names[row["node"]]} if row["kind"] == "absent" and row["node"] < len(names) else {}) for row in rows]


def _seen(measured: Measured, own: NodeFacts | None, listed: Found | None) -> Found:
    """Return the cluster of the nodes that were measured."""
    nodes: dict[str, NodeFacts] = {}
    for row in measured.of("facts"):
        text = UNPRINTABLE.sub(" ", json.dumps(row["seen"]))
        seen = json.loads(text, parse_float=lambda number: min(float(number), 1e24), parse_constant=lambda infinite: 0)
        known = {name: value for name, value in cast("dict[str, Any]", seen).items() if value} if isinstance(seen, dict) else seen
        node = records.read(NodeFacts, known, "facts of a node")
        nodes[node.host] = node
    for row in measured.of("machine"):
        nodes.setdefault(str(row["host"]), own or NodeFacts(str(row["host"]), sources={"host": "its rows"}))
    unseen = [words for node in nodes.values() for words in node.unseen]
    unseen += [f"{row['what']}: {row['why']}" for row in measured.of("missing")]
    down = [node for node in listed.nodes if node.state != "ready" and node.host not in nodes] if listed else []
    links = measured.links("between")
    per_node = 1 + max(measured.locals.values(), default=0)
    rate = sorted(links.values())[len(links) // 2] * per_node if links else 0.0
    return cluster.found([*nodes.values(), *down], unseen, rate)


def _not_as_said(on: Any, seen: Found) -> list[verdict.Finding]:
    """Return what is not as --on says."""
    ready = [node for node in seen.nodes if node.state == "ready"]
    pairs = (
        ("nodes", on.node_count, len(ready)),
        ("chip", on.chip.key, seen.chip),
        ("devices of a node", on.node.devices, max(1, seen.usual.devices)),
    )
    return [
        verdict.Finding("sick", (seen.usual.host,), what, f"{what}: {found or 'unknown'}, where --on says {said}", against="--on")
        for what, said, found in pairs if said != found
    ]  # fmt: skip


def _rest(measured: Measured) -> list[str]:
    """Return what limits the verdict."""
    taken = sorted(verdict.busy(measured))
    busy = f"other programs use the CPUs of {', '.join(taken[:16])}: rates there say little, and are not kept as history"
    limits = {
        "one device: it has no neighbour to compare with": len(measured.rates("matrix products")) < 2,
        "two nodes: a slow link between them cannot be blamed on one of them": len(set(measured.hosts.values())) == 2,
        busy: bool(taken),
    }
    return [words for words, holds in limits.items() if holds]


def _remember(measured: Measured, ill: set[str]) -> list[str]:
    """Keep the rates of nodes without findings, and write a calibration; return notes."""
    for host, rates in verdict.node_rates(measured).items():
        if host not in ill | verdict.busy(measured):
            history.remember(host, verdict.kind_of(measured, host), rates)
    rows = _probe_rows(measured, ill)
    try:
        machine = probe.machine(rows, CALIBRATION) if rows else None
    except (UserError, ValueError):
        machine = None
    if machine is None:
        return ["too little was measured for a calibration"]
    store.write_machine(machine, CALIBRATION, CALIBRATION, f"meshwise preflight', {rows[0]['date']}")
    files.clear()
    path = files.user_folder() / "calibration" / f"{CALIBRATION}.toml"
    return [f"calibration for free: --calibration {CALIBRATION} ({path})"]


def _probe_rows(measured: Measured, ill: set[str]) -> list[Row]:
    """Return the rows of the first healthy node as those of a probe."""
    rank = next((row["rank"] for row in measured.of("gemm") if measured.hosts[row["rank"]] not in ill), None)
    kinds = ("gemm", "memory", "wire")
    machine = [row for row in measured.of("machine") if row["rank"] == rank]
    return machine[:1] + [row for row in measured.rows if row["kind"] in kinds and (row["rank"] == rank or row["kind"] == "wire")]
