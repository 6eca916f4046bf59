"""`make fuzz`: feed every parser mutated inputs; anything but a result or one line for the user is a failure, kept with its input.

    python tools/fuzz.py [--inputs 10000] [--seed 0] [--seconds 400] [--jobs 1] [TARGET...]

Results go into docs/reports/reliability and its page as each target ends, beside those of targets that are not named. Each target runs in a
process of its own with at most 1 GB of new memory, and 10 s of CPU per input where the target states no less.
`tests/support/fuzz_targets.py` lists them.
"""

import argparse
import json
import math
import multiprocessing
import os
import resource
import signal
import sys
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
os.environ.setdefault("MESHWISE_HOME", os.devnull)

MEMORY = 1 << 30
WAITS = 60
"""A parser that waits instead of computing ends after this many times the CPU time that it may take: on a machine with much other work a
process of low priority gets a tenth of a core."""


@dataclass
class Result:
    """Outcomes of the inputs of one target."""

    target: str
    inputs: int
    seconds: float
    slowest: float
    peak: int
    """Bytes by which the process grew."""
    failures: int
    seed: int = 0
    tested: str = ""
    """The commit and the day."""


class TooLong(BaseException):
    """An input took more than the seconds of its target."""


def _late(number: int, frame: FrameType | None) -> None:
    raise TooLong


def fuzz(name: str, inputs: int, seed: int, kept: Path, seconds: float = math.inf, limited: bool = True) -> Result:
    """Feed a target for at most these seconds; write inputs that fail, with their tracebacks, into `kept`."""
    from support.fuzz_targets import TARGETS

    target = TARGETS[name]
    begun, until, slowest, failures, fed = time.process_time(), time.monotonic() + seconds, 0.0, 0, 0
    with TemporaryDirectory(prefix="meshwise-fuzz-") as folder:
        target.feed(Path(folder), target.seeds()[0])  # imports, and reads the catalogue, which is not what is measured
        target.input(0)  # makes the valid inputs
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        if limited:
            _limit_memory()
        for number in range(inputs):
            if time.monotonic() > until:
                break
            data = target.input(number, seed)
            started = time.process_time()
            if limited:
                _limit_time(target.seconds)
            try:
                target.feed(Path(folder), data)
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                _limit_time(0)
                failures += 1
                kept.mkdir(parents=True, exist_ok=True)
                where = kept / f"{name.replace(' ', '-').replace('/', '-')}-{number}"
                where.write_bytes(data)
                where.with_name(where.name + ".txt").write_text(traceback.format_exc(), encoding="utf-8", errors="replace")
            finally:
                _limit_time(0)
            fed += 1
            slowest = max(slowest, time.process_time() - started)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    return Result(name, fed, time.process_time() - begun, slowest, peak, failures, seed)


def _limit_memory() -> None:
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() if sys.platform == "linux" else 0
    resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY) if size else (-1, -1))
    signal.signal(signal.SIGPROF, _late)
    signal.signal(signal.SIGALRM, _late)


def _limit_time(seconds: float) -> None:
    """Limit what follows to this much CPU (a busy machine is no fault of a parser) and to some times as long on the clock; 0: no limit."""
    signal.setitimer(signal.ITIMER_PROF, seconds)
    signal.setitimer(signal.ITIMER_REAL, seconds * WAITS)


def main() -> int:
    import torture
    from support.fuzz_targets import TARGETS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"by default all: {', '.join(TARGETS)}")
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, default=math.inf, help="give a target no further input after this long")
    parser.add_argument("--jobs", type=int, default=min(os.cpu_count() or 1, 8), help="targets at a time")
    parser.add_argument("--kept", type=Path, default=Path("build/fuzz"), help="folder for inputs that fail")
    given = parser.parse_args()
    if unknown := [name for name in given.targets if name not in TARGETS]:
        parser.error(f"{unknown[0]}: expected {', '.join(TARGETS)}")
    jobs = [(name, given.inputs, given.seed, given.kept, given.seconds) for name in given.targets or TARGETS]
    failures, commit = 0, torture.commit()
    with multiprocessing.get_context("spawn").Pool(given.jobs, maxtasksperchild=1) as pool:
        for result in pool.imap_unordered(_one, jobs, chunksize=1):
            failures += result.failures
            failed = f"{result.failures} FAILED" if result.failures else "all well"
            print(
                f"{result.target:28} {result.inputs:6} inputs, {failed}; {result.seconds:6.1f} s of CPU, slowest {result.slowest:.2f} s, "
                f"{result.peak / 2**20:.0f} MiB",
                flush=True,
            )
            _record(result, f"{commit}, {time.strftime('%Y-%m-%d', time.gmtime())}")
    print(f"{failures} failures" + (f", kept in {given.kept}" if failures else ""))
    return int(failures > 0)


def _record(result: Result, tested: str) -> None:
    """Write a result beside those of other targets, and the page of all."""
    import torture
    from support.fuzz_targets import TARGETS

    rows = {row["target"]: row for row in json.loads(torture.FUZZED.read_text())}
    rows[result.target] = asdict(result) | {"tested": tested}
    torture.FUZZED.write_text(json.dumps([rows[name] for name in TARGETS if name in rows], indent=2) + "\n")
    torture.write_page()


def _one(job: "tuple[str, int, int, Path, float]") -> Result:
    return fuzz(*job)


if __name__ == "__main__":
    sys.exit(main())
