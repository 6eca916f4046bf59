"""CPU time of whole commands, process start included. Must: `count` under 0.6 s, a serving plan under 1 s."""

import resource
import statistics
import subprocess
import sys
from pathlib import Path

RUNS = 15
COMMANDS = {
    "count llama-3-70b": 0.6,
    "serve llama-3.3-70b:q4_k_m --on 4xrtx4060ti-16gb --context 16k": 1.0,
    "serve llama-3.3-70b --on 8xh100-sxm --users 64": 1.0,
}
"""Arguments of meshwise, and the seconds they must stay under."""


def cpu_seconds(command: list[str]) -> float:
    """Return user plus system time of one run, as the kernel counts it for the finished child."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    bare = [cpu_seconds([sys.executable, "-c", "pass"]) for _ in range(RUNS)]
    print(f"python -c pass: {statistics.median(bare):.3f} s")
    for words, must in COMMANDS.items():
        times = [cpu_seconds([str(Path(sys.executable).parent / "meshwise"), *words.split()]) for _ in range(RUNS)]
        median = statistics.median(times)
        print(f"meshwise {words}: {median:.3f} s of CPU time (median of {RUNS}, {min(times):.3f} to {max(times):.3f})")
        print(f"  must be under {must} s: {'met' if median < must else 'NOT met'}")


if __name__ == "__main__":
    main()
