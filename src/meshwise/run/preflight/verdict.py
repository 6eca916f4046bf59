"""Rows of a preflight -> findings: which node, device or link is slow or broken, against neighbours, predictions, counters and history."""

import re
import statistics
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from meshwise import units
from meshwise.run.preflight import history, predicted
from meshwise.workers.probe import compare

Row = dict[str, Any]
Pair = tuple[int, int]
Level = Literal["sick", "watch"]
FIGURES = ("matrix products", "memory", "host link", "cpu", "disk")
FATAL_XIDS = frozenset(["48", "61", "62", "63", "64", "74", "79", "92", "94", "95", "119", "120", "140"])
"""Xid errors of hardware: double-bit ECC, row remapping, NVLink, off the bus, uncontained ECC, GSP (NVIDIA's Xid catalogue)."""
SLOWDOWNS = ("hw_slowdown", "hw_thermal_slowdown", "sw_thermal_slowdown", "hw_power_brake_slowdown")
BROKEN = {
    "ecc.errors.uncorrected.volatile.total": "uncorrected memory errors since the driver started",
    "retired_pages.pending": "a memory page waits for retirement", "remapped_rows.failure": "a row of its memory could not be remapped",
}  # fmt: skip
"""Counters that are not zero or 'Yes' on a broken GPU."""
HISTORY_LIMITS = {"cuda": 0.9, "cpu": 0.5}  # share of a node's own earlier rate below which it has become slower
BUSY_LOAD = 1.2  # processes per core that want to run, above which other programs use a node
ALL_SLOW = 0.75  # share of a node's links that are slow, from which on the node is at fault and not its links


@dataclass(frozen=True)
class Finding:
    """Something that is slow or broken."""

    level: Level
    nodes: tuple[str, ...]  # the node; of a link both
    what: str
    message: str
    device: int | None = None  # the device of the node, if the node has several and one is meant
    share: float | None = None  # its rate over the one that was expected
    against: str = "neighbours"  # neighbours, prediction, history or counters

    @property
    def where(self) -> str:
        if len(self.nodes) > 1:
            return f"link between {' and '.join(self.nodes)}"
        return "".join(self.nodes) + (f" device {self.device}" if self.device is not None else "")


@dataclass(frozen=True)
class Measured:
    """The rows of a preflight, by rank."""

    rows: tuple[Row, ...]

    def of(self, kind: str) -> list[Row]:
        return [row for row in self.rows if row["kind"] == kind]

    @property
    def device(self) -> str:
        return str(next((row["device"] for row in self.of("machine")), "cpu"))

    @property
    def hosts(self) -> dict[int, str]:
        """The host of each rank; of ranks that never came, the number of their node."""
        known = {int(row["rank"]): str(row["host"]) for row in self.of("machine")}
        nodes = {int(row["node"]): str(row["host"]) for row in self.of("machine")}
        names = {
            int(row["rank"]): row.get("host") or nodes.get(int(row["node"]), f"node {row['node']}") for row in self.of("absent")
        }
        return {rank: str(name) for rank, name in names.items()} | known

    @property
    def locals(self) -> dict[int, int]:
        return {int(row["rank"]): int(row["local"]) for row in self.of("machine")}

    def rates(self, what: str) -> dict[int, float]:
        """Return a figure by rank."""
        return {int(row["rank"]): float(row["rate"]) for row in self.of("figure") if row["what"] == what}

    def links(self, kind: str, value: str = "rate") -> dict[Pair, float]:
        """Return rates of links (or the inverse of their latency) by the ranks that they join."""
        rows = [row for row in self.of("link") if row["what"] == kind]
        return {(int(row["from"]), int(row["to"])): _rate(row, value) for row in rows}

    def again(self, what: str, value: str = "rate") -> dict[Any, float]:
        """Return the shares of what was measured again: its best rate over the best of a usual neighbour, measured in turns with it."""
        rows = [row for row in self.of("again") if row["what"] == what and value in row]
        best: dict[Any, float] = {}
        usual = max((_rate(row, value) for row in rows if row["usual"]), default=0.0)
        for row in rows:
            key = (int(row["from"]), int(row["to"])) if {"from", "to"} <= row.keys() else int(row["rank"])
            if not row["usual"]:
                best[key] = max(best.get(key, 0.0), _rate(row, value))
        return {key: rate / usual for key, rate in best.items()} if usual else {}


def _rate(row: Row, value: str) -> float:
    return float(row["rate"]) if value == "rate" else 1 / max(1e-9, float(row[value]))


def judge(measured: Measured, expected: Mapping[str, float]) -> list[Finding]:
    """Return all findings, the sick first. `expected`: predicted rates by figure."""
    found = [*absent(measured), *counters(measured)]
    found += [finding for what in FIGURES for finding in slow_devices(measured, what)]
    sick = {finding.nodes[0] for finding in found if finding.level == "sick" and len(finding.nodes) == 1}
    found += [one for kind in ("inside", "between") for one in slow_links(measured, kind) if not sick & set(one.nodes)]
    named = {(finding.nodes, finding.what) for finding in found}
    alone = (*against_prediction(measured, expected), *against_history(measured))
    found += [one for one in alone if (one.nodes, one.what) not in named]
    return sorted(found, key=lambda one: (one.level != "sick", one.share if one.share is not None else 0.0))


def absent(measured: Measured) -> Iterator[Finding]:
    """Yield nodes and devices that took no part."""
    hosts, by_node = measured.hosts, defaultdict[str, list[Row]](list)
    for row in measured.of("absent"):
        by_node[hosts[int(row["rank"])]].append(row)
    for host, rows in by_node.items():
        why = str(rows[0]["why"])[:200]
        yield Finding("sick", (host,), "absent", f"{len(rows)} of its ranks took no part: {why}", against="counters", share=0.0)
    for row in measured.of("missing"):
        if row["what"] == "pairs and rings":
            host = hosts.get(int(row["rank"]), f"node {row['node']}")
            yield Finding("sick", (host,), "links", f"its links failed: {str(row['why'])[:200]}", against="counters", share=0.0)
            return  # the others wait for the same link, and say the same


def slow_devices(measured: Measured, what: str) -> Iterator[Finding]:
    """Yield nodes, or single devices of nodes, that are slower than their neighbours."""
    rates, hosts, places = measured.rates(what), measured.hosts, measured.locals
    if len(rates) < 2:
        return
    again = measured.again(what)
    slow = compare.slow(rates, compare.limit(what, measured.device), again)
    on_host = defaultdict[str, list[int]](list)
    for rank in rates:
        on_host[hosts[rank]].append(rank)
    for host, ranks in on_host.items():
        those = [rank for rank in ranks if rank in slow]
        whole = len(those) == len(ranks)
        for rank in those[:1] if whole else those:
            share = statistics.median(slow[one] for one in those) if whole else slow[rank]
            level: Level = "sick" if rank in again else "watch"
            words = f"{what}: {share:.0%} of its neighbours' {_shown(what, compare.usual(rates))}" + _repeats(rank in again)
            yield Finding(level, (host,), what, words, None if whole else places[rank], share)


def _repeats(again: bool) -> str:
    return ", measured again" if again else ", measured once"


def _shown(what: str, rate: float) -> str:
    return units.show(rate, "FLOP/s" if what == "matrix products" else "bytes/s", digits=3)


def slow_links(measured: Measured, kind: str) -> Iterator[Finding]:
    """Yield links that are slower than the others, or the nodes or devices that most slow links have in common."""
    for name, value in (("send", "rate"), ("latency", "latency")):
        rates, again, what = measured.links(kind, value), measured.again(kind, value), f"{name} {kind}"
        if len(rates) < 3:
            continue
        slow, usual = compare.slow(rates, compare.limit(what, measured.device), again), compare.usual(rates)
        found = list(_blamed(measured, kind, slow, rates))
        for nodes, device, way, pairs in found:
            share, repeated = statistics.median(slow[pair] for pair in pairs), any(pair in again for pair in pairs)
            trusted = name == "send" or measured.device != "cpu"  # latency of CPUs: their scheduler
            times = f"{share:.0%} of the others' {units.show(usual, 'bytes/s', digits=3)}"
            if name == "latency":
                times = f"{1 / share:.1f} times the others' {units.show(1 / usual, 'seconds', digits=3)}"
            words = f"{_NAMES[what]}{way}: {times}{_repeats(repeated)}"
            yield Finding("sick" if repeated and trusted else "watch", nodes, what, words, device, share)
        if found:
            return


_NAMES = {"send inside": "bandwidth inside the node", "send between": "network bandwidth", "latency inside": "latency inside the node",
    "latency between": "network latency"}  # fmt: skip


def _blamed(
    measured: Measured, kind: str, slow: Mapping[Pair, float], rates: Mapping[Pair, float]
) -> Iterator[tuple[tuple[str, ...], int | None, str, list[Pair]]]:
    """Yield what explains slow links, as node, device, direction and links: first nodes, then devices, most of whose links in a direction
    are slow, the worst first; then links alone."""
    hosts, places = measured.hosts, measured.locals
    left: dict[Pair, float] = dict(slow)
    several = max(places.values(), default=0) > 0
    levels: list[Callable[[int], object]] = [hosts.__getitem__] if kind == "between" else []
    for place in [*levels, *([int] if several else [])]:
        touching = defaultdict[tuple[object, str], list[Pair]](list)
        for a, b in rates:
            touching[place(a), " when it sends"].append((a, b))
            touching[place(b), " when it receives"].append((a, b))
        for (culprit, way), pairs in sorted(touching.items(), key=lambda item: -sum(pair in slow for pair in item[1])):
            bad = [pair for pair in pairs if pair in slow]
            partners = {place(end) for pair in bad for end in pair} - {culprit}
            if len(partners) < 2 or len(bad) < ALL_SLOW * len(pairs) or not set(bad) & set(left):
                continue
            own = next(end for end in bad[0] if place(end) == culprit)
            those = [(a, b) for a, b in left if culprit in (place(a), place(b))]
            one_way = way if not set(those) - set(bad) else ""
            yield (hosts[own],), places[own] if place is int else None, one_way, those
            left = {pair: share for pair, share in left.items() if pair not in those}
    while left:
        a, b = min(left, key=lambda pair: left[pair])
        ends = {hosts[a], hosts[b]} if kind == "between" else {a, b}
        joined = [pair for pair in left if ({hosts[one] for one in pair} if kind == "between" else set(pair)) == ends]
        one_way = f" from {hosts[a]}" if kind == "between" and len({hosts[one] for one, _ in joined}) == 1 else ""
        first, second = sorted((a, b))
        nodes = (hosts[first], hosts[second]) if kind == "between" else (hosts[a],)
        yield nodes, places[b] if kind == "inside" else None, one_way, joined
        left = {pair: share for pair, share in left.items() if pair not in joined}


def counters(measured: Measured) -> Iterator[Finding]:
    """Yield GPUs whose counters show an error: throttled, ECC, a narrow PCIe link, or Xid errors of the kernel's log."""
    hosts, places = measured.hosts, measured.locals
    for row in measured.of("counters"):
        said = {str(key): str(value) for key, value in row.items()}
        problems = [f"throttled ({name})" for name in SLOWDOWNS if said.get(f"clocks_throttle_reasons.{name}") == "Active"]
        problems += [words for field, words in BROKEN.items() if re.fullmatch(r"Yes|0*[1-9]\d*", said.get(field, ""))]
        now, most = said.get("pcie.link.width.current", ""), said.get("pcie.link.width.max", "")
        problems += [f"PCIe x{now} instead of x{most}"] if now.isdecimal() and most.isdecimal() and int(now) < int(most) else []
        if problems:
            yield Finding("sick", (hosts[row["rank"]],), "counters", "; ".join(problems), places[row["rank"]], against="counters")
    for row in measured.of("xid"):
        codes = re.findall(r"\d+", str(row["codes"]))
        fatal = [code for code in codes if code in FATAL_XIDS]
        if codes:
            level: Level = "sick" if fatal else "watch"
            words = f"{len(codes)} Xid errors in the kernel's log: {', '.join(dict.fromkeys(fatal or codes))}"
            yield Finding(level, (hosts[row["rank"]],), "Xid", words, places[row["rank"]], against="counters")


def node_rates(measured: Measured) -> dict[str, dict[str, float]]:
    """Return the rates of each node: the median of its devices, and of the best of its links."""
    hosts, values = measured.hosts, defaultdict[str, dict[str, list[float]]](lambda: defaultdict(list))
    for what in FIGURES:
        for rank, rate in measured.rates(what).items():
            values[hosts[rank]][what].append(rate)
    for kind in ("inside", "between"):
        for (rank, _), rate in measured.links(kind).items():
            values[hosts[rank]][f"send {kind}"].append(rate)
    return {host: {what: statistics.median(rates) for what, rates in of.items()} for host, of in values.items()}


def against_prediction(measured: Measured, expected: Mapping[str, float]) -> Iterator[Finding]:
    """Yield nodes whose rates are far below those predicted for their chip and links."""
    for host, rates in node_rates(measured).items():
        for what, rate in rates.items():
            share = rate / expected[what] if expected.get(what) else 1.0
            if share < predicted.LIMITS.get(what, 0.0):
                level: Level = "sick" if what in ("matrix products", "memory") else "watch"
                yield _below(level, host, what, rate, share, f"the predicted {_shown(what, expected[what])}", "prediction")


def _below(level: Level, host: str, what: str, rate: float, share: float, of: str, against: str) -> Finding:
    words = f"{_NAMES.get(what, what)}: {_shown(what, rate)}, {share:.0%} of {of}"
    return Finding(level, (host,), what, words, share=share, against=against)


def against_history(measured: Measured) -> Iterator[Finding]:
    """Yield nodes that have become slower. On CPUs, which other processes share, that is only worth watching."""
    limit = HISTORY_LIMITS[measured.device]
    level: Level = "sick" if measured.device == "cuda" else "watch"
    for host, rates in node_rates(measured).items():
        if measured.device == "cpu" and host in busy(measured):
            continue
        before = history.earlier(host, kind_of(measured, host))
        for what, rate in rates.items():
            usual = history.usual(before, what)
            if what != "disk" and usual and rate < limit * usual:
                since = f"{_shown(what, usual)} since {before[0][0][:10]}"
                yield _below(level, host, what, rate, rate / usual, since, "history")


def busy(measured: Measured) -> set[str]:
    """Return nodes on which more processes wanted a core, before anything was measured, than there are cores."""
    rows = [row for row in measured.of("machine") if row["local"] == 0]
    return {str(row["host"]) for row in rows if float(row.get("load", 0.0)) > BUSY_LOAD * float(row["cores"])}


def kind_of(measured: Measured, host: str) -> str:
    """Return the devices of a node, and how many nodes met: what its earlier preflights must have in common with this one."""
    rows = [row for row in measured.of("machine") if row["host"] == host]
    return f"{len(rows)}x{rows[0]['name']}, {rows[0]['nodes']} nodes" if rows else ""
