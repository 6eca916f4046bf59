"""`make fuzz`: feed every parser mutated inputs; anything but a result or one line for the user is a failure, kept with its input.

    python tools/fuzz.py [--inputs 10000] [--seed 0] [TARGET...]

Results of targets that are not named stay in the file of results. Each target runs in a process of its own with at most 1 GB of new memory
and 10 s of CPU per input.
`tests/support/fuzz_targets.py` lists them.
"""

import argparse
import json
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import time
import traceback
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))
os.environ.setdefault("MESHWISE_HOME", os.devnull)

SECONDS, MEMORY = 10, 1 << 30


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
    tested: str = ""
    """The commit and the day."""


class TooLong(BaseException):
    """An input took more than SECONDS."""


def _late(number: int, frame: FrameType | None) -> None:
    raise TooLong


def fuzz(name: str, inputs: int, seed: int, kept: Path, limited: bool = True) -> Result:
    """Feed a target; write inputs that fail, with their tracebacks, into `kept`."""
    from support.fuzz_targets import TARGETS

    target = TARGETS[name]
    begun, slowest, failures = time.process_time(), 0.0, 0
    with TemporaryDirectory(prefix="meshwise-fuzz-") as folder:
        target.input(0)  # makes the valid inputs, which is not what is measured
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        if limited:
            size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() if sys.platform == "linux" else 0
            resource.setrlimit(resource.RLIMIT_AS, (size + MEMORY, size + MEMORY) if size else (-1, -1))
            signal.signal(signal.SIGPROF, _late)  # CPU time: a busy machine is no fault of a parser
        for number in range(inputs):
            data = target.input(number, seed)
            started = time.process_time()
            if limited:
                signal.setitimer(signal.ITIMER_PROF, SECONDS)
            try:
                target.feed(Path(folder), data)
            except BaseException as error:
                if isinstance(error, KeyboardInterrupt):
                    raise
                failures += 1
                kept.mkdir(parents=True, exist_ok=True)
                where = kept / f"{name.replace(' ', '-').replace('/', '-')}-{number}"
                where.write_bytes(data)
                where.with_name(where.name + ".txt").write_text(traceback.format_exc(), encoding="utf-8", errors="replace")
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
            slowest = max(slowest, time.process_time() - started)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 - before
    return Result(name, inputs, time.process_time() - begun, slowest, peak, failures)


def main() -> int:
    from support.fuzz_targets import TARGETS

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"by default all: {', '.join(TARGETS)}")
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kept", type=Path, default=Path("build/fuzz"), help="folder for inputs that fail")
    parser.add_argument("--results", type=Path, default=Path("build/fuzz.json"))
    given = parser.parse_args()
    jobs = [(name, given.inputs, given.seed, given.kept) for name in given.targets or TARGETS]
    results: list[Result] = []
    with multiprocessing.get_context("spawn").Pool(min(os.cpu_count() or 1, 8), maxtasksperchild=1) as pool:
        for result in pool.imap_unordered(_one, jobs, chunksize=1):
            results.append(result)
            failed = f"{result.failures} FAILED" if result.failures else "all well"
            print(
                f"{result.target:28} {result.inputs:6} inputs, {failed}; {result.seconds:6.1f} s of CPU, slowest {result.slowest:.2f} s, "
                f"{result.peak / 2**20:.0f} MiB",
                flush=True,
            )
    tested = f"{commit()}, {time.strftime('%Y-%m-%d', time.gmtime())}"
    earlier = json.loads(given.results.read_text()) if given.results.is_file() else []
    rows = {row["target"]: row for row in earlier} | {result.target: asdict(result) | {"tested": tested} for result in results}
    given.results.parent.mkdir(parents=True, exist_ok=True)
    given.results.write_text(json.dumps([rows[name] for name in TARGETS if name in rows], indent=2) + "\n")
    failures = sum(result.failures for result in results)
    print(f"{failures} failures" + (f", kept in {given.kept}" if failures else ""))
    return int(failures > 0)


def commit() -> str:
    """Return the commit that is checked out."""
    words = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout.strip()


def _one(job: "tuple[str, int, int, Path]") -> Result:
    return fuzz(*job)


if __name__ == "__main__":
    sys.exit(main())
