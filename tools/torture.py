"""`make torture`: kill, damage and cut real runs many times, check that nothing is lost, and write docs/reports/reliability.md.

    python tools/torture.py [--kills 100] [--damages 20] [--seed 0] [FAULT...]

Each row of the page has the commit and the day on which it was tried, kept beside the page in docs/reports/reliability: rows of faults that
are not asked for stay. Network namespaces need root; without it, the faults of several hosts are left out. `make fuzz` writes the figures
of the parsers.
"""

import argparse
import ast
import json
import math
import os
import random
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from meshwise.workers.trainer.contract.marker import complete_steps
from meshwise.workers.trainer.contract.process.kill_points import POINTS
from support import trainer_process
from support.hostile_endpoints import FAULTS, KEY, Hostile
from support.scripted_endpoint import serving
from support.three_hosts import ThreeHosts, Unavailable, three_hosts
from support.trainer_process import PROGRAM, Training, alive, descendants

STEPS = 40
COMMON = ("--steps", str(STEPS), "--checkpoint-every", "5", "--timeout", "20s")
RUN = (*COMMON, "--dp-shard", "2")
LAYOUTS = {
    "zero 3": ("--dp-shard", "2"), "replicas": ("--dp-replicate", "2"), "tensor": ("--tp", "2"), "pipeline": ("--pp", "2", "--mbs", "2"),
    "context": ("--cp", "2"), "one": (), "lora": ("--dp-shard", "2", "--finetune", "lora:4"),
}  # fmt: skip
"""Layouts of the runs that are killed."""
ENDLESS = ("--steps", "1000000", "--checkpoint-every", "5", "--timeout", "10s", "--batch", "12")
PATIENCE = 2.0
PAGE = Path(__file__).parent.parent / "docs" / "reports" / "reliability.md"
TORTURED, FUZZED = (PAGE.with_suffix("") / f"{name}.json" for name in ("torture", "fuzz"))
"""Rows of the page, of faults and of parsers, those of earlier calls too."""
ROOT = PAGE.parents[2]


@dataclass
class Row:
    """A row of docs/reports/reliability.md."""

    fault: str
    happens: str
    tried: int
    result: str
    failures: int = 0
    tested: str = ""
    """The commit and the day."""


def until(holds: Callable[[], Any], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if holds():
            return True
        time.sleep(0.05)
    return False


def unbroken(folder: Path, layout: str = "zero 3") -> list[float]:
    run = Training(folder / f"unbroken-{layout.replace(' ', '-')}", *COMMON, *LAYOUTS[layout])
    assert run.end() == 0, run.printed()
    return run.losses()


def kills(folder: Path, count: int, rng: random.Random, seconds: float, layouts: Sequence[str]) -> Row:
    """Kill the launcher, the agent or a rank of these layouts at random moments and at named points; run the same command again until
    it is done."""
    failures: list[str] = []
    orphans = 0
    out, number = folder / "killed-0", 0
    unkilled: dict[str, list[float]] = {}
    layout = rng.choice(layouts)
    done, ends = 0, time.monotonic() + seconds
    for kill in range(count):
        last_one = kill == count - 1 or time.monotonic() > ends
        words = (*COMMON, *LAYOUTS[layout])
        point = rng.choice(list(POINTS)) if kill % 2 else ""
        moment = rng.uniform(0, 3) if kill % 4 < 2 else rng.uniform(3, 7)
        token = folder / "token"
        token.touch()
        run = Training(out, *words, MESHWISE_KILL_AT=f"{point}:{token}" if point else "")
        family = {run.process.pid}
        end = time.monotonic() + (20 if point else moment)
        while time.monotonic() < end and run.process.poll() is None and (not point or token.exists()):
            family |= set(descendants(run.process.pid))
            time.sleep(0.01)
        if not point and run.process.poll() is None:
            family |= set(descendants(run.process.pid))
            os.kill(run.process.pid if rng.random() < 0.6 else rng.choice(sorted(family)), signal.SIGKILL)
        if run.process.poll() is None and rng.random() < 0.7:
            run.process.kill()
        if run.process.poll() is not None:  # the launcher is gone: so must be everything it started
            run.process.wait()
            if not until(lambda family=family: not alive(sorted(family)), 10):
                orphans += len(alive(sorted(family)))
                failures.append(f"kill {kill}: orphans {alive(sorted(family))}")
        else:
            try:
                run.end()  # it restarts its workers, and goes on
            except AssertionError as error:
                failures.append(f"kill {kill} ({layout}, {point or moment}): did not end: {str(error)[-800:]}")
        token.unlink(missing_ok=True)
        rows = [row["step"] for row in run.rows()]
        if rows != list(range(len(rows))):
            failures.append(f"kill {kill} ({point or moment}): rows {rows}")
        if rng.random() < 0.25 or last_one or len(rows) == STEPS:
            last = Training(out, *words)
            code = last.end()
            expected = unkilled[layout] = unkilled.get(layout) or unbroken(folder, layout)
            if code or last.losses() != expected:
                failures.append(f"kill {kill} ({layout}, {point or moment}): exit {code}, losses differ: {last.printed()[-800:]}")
            shutil.rmtree(out)
            number += 1
            out, layout = folder / f"killed-{number}", rng.choice(layouts)
        done += 1
        print(f"kill {kill + 1}/{count}: {layout}, {point or f'{moment:.1f} s'}, {len(failures)} failures", flush=True)
        if last_one:
            break
    for line in failures:
        print(line)
    fault = (
        f"SIGKILL of the launcher, the agent or a rank in layouts at random ({', '.join(unkilled)}), half of them at named points of a "
        "start or a checkpoint, the rest at random moments, half of these in the first 3 s"
    )
    well = f"{orphans} orphans after 10 s, 0 doubled rows, losses bit-equal"
    return Row(fault, "all its processes end; the same command goes on from the newest checkpoint", done,
        f"{len(failures)} failures" if failures else well, len(failures))  # fmt: skip


def damages(folder: Path, count: int, rng: random.Random, expected: list[float]) -> Row:
    """Damage the newest checkpoint at random; the one before must be used, with the same losses."""
    base = Training(folder / "base", "--steps", str(STEPS), "--checkpoint-every", "5", "--dp-shard", "2")
    assert base.until(lambda: "saved after step 25" in base.printed())
    base.process.kill()
    base.process.wait()
    until(lambda: False, 2)
    failures = 0
    for number in range(count):
        out = folder / f"damaged-{number}"
        shutil.copytree(folder / "base", out)
        newest = complete_steps(out / "checkpoints")[0]
        path = rng.choice(sorted((out / "checkpoints" / f"step-{newest}").iterdir()))
        data = bytearray(path.read_bytes())
        kind = rng.choice(("flip", "cut", "empty", "missing"))
        if kind == "flip":
            data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        elif kind == "cut":
            del data[rng.randrange(len(data)) :]
        path.write_bytes(b"" if kind == "empty" else bytes(data))
        if kind == "missing":
            path.unlink()
        run = Training(out, *RUN)
        well = run.end() == 0 and run.losses() == expected and "Traceback" not in run.printed()
        failures += not well
        print(f"damage {number + 1}/{count}: {kind} {path.name}, {'well' if well else run.printed()[-800:]}", flush=True)
        shutil.rmtree(out)
    return Row("a bit flipped, a file cut, emptied or removed in the newest checkpoint, its marker included",
        "it is renamed to `damaged-step-N`, and the one before it is used", count,
        "losses bit-equal" if not failures else f"{failures} failures", failures)  # fmt: skip


def endpoints() -> Row:
    """Measure hostile endpoints, each by a process of its own: it must end within its patience, in little memory."""
    failures, longest, most = 0, 0.0, 0
    for fault in FAULTS:
        for late in (False, True):
            with serving(Hostile(fault, late=late).serve) as port:
                words = ["bench", f"http://127.0.0.1:{port}", "--prompt", "20", "--output", "8", "--repeats", "1"]
                words += ["--patience", f"{PATIENCE:g}s", "--key-env", "MY_KEY"]
                # measured inside: the start of Python and the imports are not the endpoint's
                clock = (
                    "import atexit, resource, sys, time; import meshwise.run.serve.bench; t = time.monotonic(); atexit.register(lambda: "
                    "print('\\n', time.monotonic() - t, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)); "
                )
                done = subprocess.run(
                    [sys.executable, "-c", clock + PROGRAM, *words],
                    env=os.environ | {"MY_KEY": KEY}, capture_output=True, text=True, check=False, errors="replace",
                )  # fmt: skip
            seconds, memory = done.stderr.split()[-2:]
            printed = done.stdout + "\n".join(done.stderr.splitlines()[:-1])
            pieces = [KEY[i : i + 5] for i in range(len(KEY) - 4)]
            leaks = "\x1b" in printed or any(piece in printed for piece in pieces)
            bad = float(seconds) > PATIENCE + 2 or int(memory) * 1024 > 300e6 or "Traceback" in printed or leaks
            failures += bad
            longest, most = max(longest, float(seconds)), max(most, int(memory) * 1024)
            if bad:
                print(f"{fault}, late={late}: {seconds} s, {memory} kB: {printed[-600:]}", flush=True)
    print(f"endpoints: {failures} failures, {longest:.1f} s, {most / 1e6:.0f} MB", flush=True)
    return Row("endpoints of `bench` that trickle, flood, deceive or break, at once or while they are measured",
        "one line, without escape codes and without any part of the key", 2 * len(FAULTS),
        f"{failures} failures" if failures else f"all end within {longest:.1f} s of a patience of {PATIENCE:g} s, in {most / 1e6:.0f} MB",
        failures)  # fmt: skip


def ports(folder: Path) -> Row:
    """Send hostile bytes to every port of runs, and forged values into their store: the tests of the store do."""
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "tests/workers/trainer/ranks/test_store.py"]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    print(done.stdout[-2000:], flush=True)
    return Row("random bytes at every port of a run of two ranks, pickles, forged heartbeats, failures and requests to stop in its store "
        "(`tests/workers/trainer/ranks/test_store.py`)", "the run goes on, and stops when its own launcher asks", 1,
        "failed" if done.returncode else "no effect", done.returncode)  # fmt: skip


def soaked(minutes: float, patience: float) -> Row:
    """Use the page for a long time while a run beside it is killed again and again, on a full disk: tools/soak.py."""
    words = [sys.executable, str(Path(__file__).with_name("soak.py")), "--minutes", f"{minutes:g}", "--patience", f"{patience:g}"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as soak:
        assert soak.stdout is not None
        lines = [(print(line, end="", flush=True), line)[1] for line in soak.stdout]
    kills, asked = (
        sum(line.startswith("killed after") for line in lines),
        sum(ast.literal_eval(lines[-1].partition("}: ")[0] + "}").values()),
    )
    result = lines[-1].partition("}: ")[2].partition("; faults")[0]
    return Row(f"{minutes:g} minutes of `ui` with six people who ask, leave, upload and send what no page sends, temporary files on a full "
        f"disk, beside a run that is killed {kills} times (`tools/soak.py`)", "it answers; the run leaves no process and loses no row",
        asked, "failed" if soak.returncode else result, soak.returncode)  # fmt: skip


def node(hosts: ThreeHosts, out: Path, rank: int, nodes: str) -> Training:
    dp = ("--dp-shard", nodes.split(":")[-1])
    where = ("--nodes", nodes, "--node-rank", str(rank), "--rendezvous", "10.79.0.1:29500")
    return Training(out, *ENDLESS, *dp, *where, before=hosts.before(rank))


def lost_node(folder: Path, lost: int) -> Row:
    """Kill one of three nodes: the others go on in a layout planned for two, with the losses of a run resumed by hand."""
    out = folder / f"elastic-{lost}"
    with three_hosts() as hosts:
        runs = [node(hosts, out, rank, "2:3") for rank in range(3)]
        leader = runs[1 if lost == 0 else 0]
        runs[0].until(lambda: "saved after step 10" in runs[0].printed())
        hosts.kill(lost)
        begun = time.monotonic()
        leader.until(lambda: "resuming after step" in leader.printed())
        resumed = int(leader.printed().split("resuming after step ")[1].split()[0])
        leader.until(lambda: len(leader.rows()) >= resumed + 6)
        seconds = time.monotonic() - begun
        shutil.copytree(out, folder / f"by-hand-{lost}")
        layout = json.loads((out / "config.json").read_text())["layout"]
        leader.process.send_signal(signal.SIGTERM)
        codes = [run.end() for run in runs if run is not runs[lost]]
        losses = leader.losses()
    by_hand = folder / f"by-hand-{lost}"
    for step in complete_steps(by_hand / "checkpoints"):
        if step > resumed:
            shutil.rmtree(by_hand / "checkpoints" / f"step-{step}")
    axes = ("--dp-shard", str(layout["dp_shard"]), "--mbs", str(layout["mbs"]), "--zero", str(layout["zero"]))
    again = Training(by_hand, *ENDLESS, *axes)
    again.until(lambda: len(again.rows()) >= resumed + 6)
    again.process.send_signal(signal.SIGTERM)
    again.end()
    same = again.losses()[: resumed + 6] == losses[: resumed + 6]
    print(f"node {lost} lost: {seconds:.0f} s, exit codes {codes}, losses {'equal' if same else 'differ'}, {layout}", flush=True)
    bad = (not same) + any(codes) + (seconds > 70)
    return Row(f"node {lost} of three lost (`--nodes 2:3`, network namespaces)",
        "the other two go on from the checkpoint in a layout planned for two nodes", 1,
        f"{seconds:.0f} s to the sixth step after it, losses as of a run resumed by hand" if not bad else "failed", bad)  # fmt: skip


def cut_link(folder: Path) -> Row:
    """Cut the cable of node 1 of two for longer than `--timeout`: both name the other, and go on when it is back."""
    out = folder / "cut"
    with three_hosts() as hosts:
        runs = [node(hosts, out, rank, "2") for rank in range(2)]
        runs[0].until(lambda: len(runs[0].rows()) >= 12)
        hosts.cut(1)
        begun = time.monotonic()
        waits = until(lambda: "waiting for the link" in runs[1].printed(), 60)
        seconds = time.monotonic() - begun
        named = until(lambda: "rank 1 on node 1" in runs[0].printed(), 30)
        hosts.join(1)
        again = until(lambda: "resuming after step" in runs[0].printed(), 90)
        before = len(runs[0].rows())
        goes_on = again and until(lambda: len(runs[0].rows()) >= before + 6, 60)
        back, steps = time.monotonic() - begun, [row["step"] for row in runs[0].rows()]
        runs[0].process.send_signal(signal.SIGTERM)
        ended = until(lambda: all(run.process.poll() == 0 for run in runs), 60)
    print(f"cut link: {seconds:.0f} s, {runs[1].printed().splitlines()[-3:]}", flush=True)
    bad = sum(not well for well in (waits, named, goes_on, ended, steps == list(range(len(steps)))))
    return Row("the link of one of two nodes cut for longer than `--timeout`", "each names the other within `--timeout`; node 1 waits for "
        "the link as long as node 0 waits for it, and both go on from the newest checkpoint", 1,
        f"named {seconds:.0f} s after the cut with `--timeout 10s`; at the sixth step after it {back:.0f} s after the cut" if not bad
        else "failed", bad)  # fmt: skip


def commit() -> str:
    """Return the commit that is checked out."""
    words = ["git", "-C", str(PAGE.parent), "rev-parse", "--short", "HEAD"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def write_page() -> None:
    """Write the page from the rows that are kept beside it."""
    rows = [Row(**row) for row in json.loads(TORTURED.read_text()).values()]
    PAGE.write_text(page(rows, json.loads(FUZZED.read_text())), encoding="utf-8")


def page(rows: Iterable[Row], fuzzed: Sequence[Any]) -> str:
    lines = [
        "# Reliability",
        "",
        "What was done to meshwise, and what happened. `make torture` and `make fuzz` do it again and write this page;",
        "[SECURITY.md](../../SECURITY.md) has what is trusted, and [run.md](../use/run.md#failures) the words that users see.",
        "",
        f"{os.cpu_count()} cores, Python {sys.version.split()[0]}.",
        "",
        "| fault | what happens | times tried | result | commit, day |",
        "| --- | --- | --- | --- | --- |",
        *(f"| {row.fault} | {row.happens} | {row.tried} | {row.result} | {row.tested} |" for row in rows),
    ]
    if fuzzed:
        lines += [
            "", "## Mutated inputs", "",
            "Each parser gets valid files with bits, numbers, lines and members changed. It returns a result or one line for",
            "the user: no traceback, at most 10 s of CPU and 1 GB per input. Launch files get 5 s, and while they are read nothing",
            "is started, reached, written, or read outside of their folder.", "",
            "| parser | inputs | failures | slowest input | memory | seed | commit, day |", "| --- | --- | --- | --- | --- | --- | --- |",
            *(f"| {r['target']} | {r['inputs']:,} | {r['failures']} | {r['slowest']:.2f} s | {r['peak'] >> 20} MiB | "
              f"{r.get('seed', '')} | {r['tested']} |"
              for r in fuzzed),
        ]  # fmt: skip
    lines += ["", "## Points of a start and of a checkpoint at which a process is killed", ""]
    lines += [
        "Each one once in CI (`tests/workers/trainer/contract/process/test_kill_points.py`).",
        "",
        "| point | state |",
        "| --- | --- |",
    ]
    lines += [f"| {name} | {words} |" for name, words in POINTS.items()]
    return "\n".join(lines) + "\n"


FAULTS_TRIED: dict[str, Callable[[Path, argparse.Namespace, random.Random], Row]] = {
    "kills": lambda folder, given, rng: kills(folder, given.kills, rng, given.seconds, ["zero 3"]),
    "kills-in-layouts": lambda folder, given, rng: kills(folder, given.kills, rng, given.seconds, sorted(LAYOUTS)),
    "endpoints": lambda folder, given, rng: endpoints(),
    "lost-node-2": lambda folder, given, rng: lost_node(folder, 2),
    "lost-node-0": lambda folder, given, rng: lost_node(folder, 0),
    "cut-link": lambda folder, given, rng: cut_link(folder),
    "ports": lambda folder, given, rng: ports(folder),
    "soak": lambda folder, given, rng: soaked(given.minutes, given.patience),
    "damages": lambda folder, given, rng: damages(folder, given.damages, rng, unbroken(folder)),
}
"""What is done to runs, by the words of the command line."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin no further kill after this long")
    parser.add_argument("--damages", type=int, default=20)
    parser.add_argument("--minutes", type=float, default=10, help="of the soak")
    parser.add_argument(
        "--patience", type=float, default=60, help="seconds in which the page answers in the soak; a run ends in ten times that"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("faults", nargs="*", metavar="FAULT", help=f"by default all: {', '.join(FAULTS_TRIED)}")
    given = parser.parse_args()
    if unknown := [name for name in given.faults if name not in FAULTS_TRIED]:
        parser.error(f"{unknown[0]}: expected {', '.join(FAULTS_TRIED)}")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    trainer_process.PATIENCE = 10 * given.patience  # pyright: ignore[reportAttributeAccessIssue]
    done = {name: Row(**row) for name, row in json.loads(TORTURED.read_text()).items()}
    now: list[Row] = []
    for name in given.faults or FAULTS_TRIED:
        with TemporaryDirectory(prefix="meshwise-torture-") as folder:
            try:
                row = FAULTS_TRIED[name](Path(folder), given, random.Random(given.seed))
            except Unavailable as error:
                print(f"{name}: left out: {error}")
                continue
        done[name] = replace(row, tested=f"{commit()}, {time.strftime('%Y-%m-%d', time.gmtime())}")
        now.append(done[name])
        TORTURED.write_text(json.dumps({each: asdict(done[each]) for each in FAULTS_TRIED if each in done}, indent=2) + "\n")
    write_page()
    failures = sum(row.failures for row in now)
    print(f"{failures} failures; {PAGE} is written")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
