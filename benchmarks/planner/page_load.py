"""Fifty people at the plan page for half a minute: errors, response times, memory of the server, and its CPU time per answer.

    python benchmarks/planner/page_load.py [--users 50] [--seconds 30]

Each person opens an answer, thinks for one to five seconds, and changes the question: other nodes, another batch, another model, or the
order of the table. Most questions are new to the server, so they are searched and not remembered. The server is a process of its own.
"""

import argparse
import json
import random
import statistics
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlencode

MODELS = {"llama-3-8b": (1, 16), "llama-3-70b": (8, 64), "bloom-176b": (24, 96), "qwen2.5-32b": (4, 32), "mixtral-8x7b": (4, 16)}
"""Models, and the numbers of nodes that people try for each."""


def question(luck: random.Random) -> str:
    model = luck.choice(list(MODELS))
    least, most = MODELS[model]
    asked = {
        "model": model,
        "on": f"{luck.randint(least, most)}x8x{luck.choice(['h100-sxm', 'a100-80gb-sxm', 'h200'])}",
        "batch": luck.choice([256, 512, 1024, 2048]),
        "seq": luck.choice(["2k", "4k", "8k"]),
        "tokens": luck.choice(["", "1T", "15T"]),
        "sort": luck.choice(["", "-mfu"]),
    }
    return urlencode({name: value for name, value in asked.items() if value})


def person(address: str, seed: int, until: float, times: list[float], errors: list[str]) -> None:
    luck = random.Random(seed)
    time.sleep(luck.uniform(0, 3))
    while time.monotonic() < until:
        request = urllib.request.Request(f"{address}/plan?{question(luck)}", headers={"x-meshwise-fragment": "1"})
        started = time.monotonic()
        try:
            with urllib.request.urlopen(request, timeout=60) as reply:
                reply.read()
            times.append(time.monotonic() - started)
        except (urllib.error.URLError, OSError) as error:
            errors.append(str(error))
        time.sleep(luck.uniform(1, 5))


def resident(pid: int) -> float:
    """Return the MiB that a process holds."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096 / 2**20


def processor(pid: int) -> float:
    """Return the CPU seconds that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / 100


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--users", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--rounds", type=int, default=3, help="rounds, to see whether memory grows")
    given = parser.parse_args()
    command = [sys.executable, "-m", "meshwise", "ui", "--port", "0", "--no-browser"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout
        address = server.stdout.readline().split()[2].rstrip("/")
        for number in range(1, given.rounds + 1):
            times, errors = list[float](), list[str]()
            before = processor(server.pid)
            until = time.monotonic() + given.seconds
            people = [
                threading.Thread(target=person, args=(address, 1000 * number + i, until, times, errors))
                for i in range(given.users)
            ]
            for each in people:
                each.start()
            for each in people:
                each.join()
            result = {
                "round": number,
                "answers": len(times),
                "errors": len(errors),
                "median_s": round(statistics.median(times), 3),
                "p95_s": round(sorted(times)[int(0.95 * len(times))], 3),
                "cpu_ms_per_answer": round(1000 * (processor(server.pid) - before) / len(times), 1),
                "resident_mib": round(resident(server.pid), 1),
            }
            print(json.dumps(result), flush=True)
            for error in errors[:3]:
                print(error, file=sys.stderr)
    finally:
        server.terminate()
        server.wait(10)


if __name__ == "__main__":
    main()
