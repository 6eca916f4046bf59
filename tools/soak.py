"""`python tools/soak.py [--minutes 120]`: use the page of `meshwise ui` as several people do for a long time, and see what it holds.

Some ask, some leave before the answer, some upload, some send what no page sends; a training run whose processes are killed writes into the
folder that the page shows; where it may be mounted, the disk for temporary files is full. Prints resident memory and threads as it goes;
fails where the server ends, answers with an error of its own, or holds more than MOST_GROWTH above what it held once every page was open,
or where the run leaves a process or loses a row.
"""

import argparse
import http.client
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlencode

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from support.trainer_process import PROGRAM, Training, alive, descendants

MODELS = ("llama-3-8b", "llama-3-70b", "mixtral-8x7b", "qwen3-32b", "deepseek-v3", "bloom-176b", "kimi-k2")
CLUSTERS = ("8xh100-sxm", "4x8xh100-sxm", "64x8xh200", "jean-zay:48", "2xrtx3090", "512x8xb200")
PAGES = (
    "plan",
    "plan.json",
    "serve",
    "serve.json",
    "mesh",
    "timeline",
    "what-if",
    "compare",
    "accuracy",
    "runs",
    "audit",
    "suggest",
)
MOST_GROWTH = 300e6
"""Bytes: caches of answers are bounded by their number, and a large answer takes some megabytes."""


def question(rng: random.Random) -> str:
    page, asked = rng.choice(PAGES), {"model": rng.choice(MODELS), "on": rng.choice(CLUSTERS)}
    if not page.startswith("serve"):
        asked["batch"] = f"{rng.choice((64, 256, 1024))}x{rng.choice((2048, 4096))}"
    if rng.random() < 0.1:
        asked[rng.choice(list(asked))] = "".join(chr(rng.randrange(1, 300)) for _ in range(rng.randrange(1, 60)))
    return f"/{page}?{urlencode(asked)}"


def ask(port: int, rng: random.Random, seen: Counter[str], longest: float) -> None:
    """Do what one person does once."""
    kind = rng.choices(("stay", "leave", "upload", "bytes"), (6, 3, 1, 1))[0]
    patience = longest if kind != "leave" else rng.uniform(0.02, 0.5)
    try:
        if kind == "bytes":
            with socket.create_connection(("127.0.0.1", port), timeout=10) as stranger:
                stranger.sendall(rng.randbytes(rng.randrange(1, 5000)))
            seen["bytes"] += 1
            return
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=patience)
        if kind == "upload":
            body = (
                b'--x\r\nContent-Disposition: form-data; name="file"; filename="a.log"\r\n\r\n'
                + rng.randbytes(rng.choice((rng.randrange(2000), 2_000_000)))
                + b"\r\n--x--"
            )
            connection.request("POST", "/audit", body, {"Content-Type": "multipart/form-data; boundary=x"})
        else:
            connection.request("GET", question(rng))
        reply = connection.getresponse()
        reply.read()
        connection.close()
        seen[f"{reply.status}"] += 1
    except (TimeoutError, OSError, http.client.HTTPException) as error:
        seen["left" if kind == "leave" else f"{kind}: {type(error).__name__}"] += 1


def held(pid: int) -> tuple[int, int]:
    """Return the resident bytes and the threads of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    values = {name: int(re.search(rf"^{name}:\s+(\d+)", status, re.MULTILINE)[1]) for name in ("VmRSS", "Threads")}  # pyright: ignore[reportOptionalSubscript]
    return values["VmRSS"] * 1024, values["Threads"]


def people(port: int, given: argparse.Namespace, until: float, seen: Counter[str]) -> list[threading.Thread]:
    def person(number: int) -> None:
        rng = random.Random(f"{given.seed} {number}")
        while time.monotonic() < until:
            ask(port, rng, seen, given.patience)
            time.sleep(rng.uniform(0, 0.3))

    threads = [threading.Thread(target=person, args=(number,), daemon=True) for number in range(given.users)]
    for thread in threads:
        thread.start()
    return threads


@contextmanager
def full_disk(folder: Path) -> Iterator[bool]:
    """Mount a full disk, where this user may."""
    folder.mkdir()
    mounted = (
        subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], capture_output=True, check=False
        ).returncode
        == 0
    )
    try:
        if mounted:
            (folder / "full").write_bytes(bytes(48 << 10))
        yield mounted
    finally:
        if mounted:
            subprocess.run(["umount", str(folder)], check=True)


def train(out: Path, until: float, rng: random.Random, faults: list[str]) -> None:
    """Train in a folder; kill the launcher or a rank at random moments, and start the same command again."""
    while time.monotonic() < until:
        run = Training(out, "--steps", "1000000", "--checkpoint-every", "5", "--dp-shard", "2", "--timeout", "60s")
        family, end = {run.process.pid}, min(until, time.monotonic() + rng.uniform(20, 120))
        while time.monotonic() < end and run.process.poll() is None:
            family |= set(descendants(run.process.pid))
            time.sleep(0.5)
        if run.process.poll() is None and rng.random() < 0.5 and len(family) > 1:
            os.kill(rng.choice(sorted(family - {run.process.pid})), signal.SIGKILL)
            time.sleep(rng.uniform(0, 20))  # it restarts its ranks
            family |= set(descendants(run.process.pid))
        run.process.kill()
        run.process.wait()
        end = time.monotonic() + 30
        while alive(sorted(family)) and time.monotonic() < end:
            time.sleep(0.2)
        rows = [row["step"] for row in run.rows()]
        faults += [f"orphans {left}" for left in [alive(sorted(family))] if left]
        faults += ["rows are lost or doubled"] if rows != list(range(len(rows))) else []
        print(f"killed after {len(rows)} steps; faults: {faults}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--users", type=int, default=6)
    parser.add_argument("--patience", type=float, default=60, help="seconds in which somebody who stays has an answer")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    with TemporaryDirectory(prefix="meshwise-soak-") as folder, full_disk(Path(folder, "full")) as full:
        print("the disk for temporary files is full" if full else "no full disk may be mounted here", flush=True)
        return soak(given, Path(folder), {"TMPDIR": f"{folder}/full"} if full else {})


def soak(given: argparse.Namespace, folder: Path, environment: dict[str, str]) -> int:
    seen: Counter[str] = Counter()
    (folder / "run").mkdir()
    (folder / "run" / "steps.jsonl").touch()
    server = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "ui", str(folder / "run"), "--port", "0", "--no-browser"],
        stdout=subprocess.PIPE, text=True, env=os.environ | environment,
    )  # fmt: skip
    faults: list[str] = []
    assert server.stdout is not None
    port = int(server.stdout.readline().split("127.0.0.1:")[1].split("/")[0])
    first, begun, samples = 0, time.monotonic(), list[tuple[int, int]]()
    try:
        until = begun + 60 * given.minutes
        threads = people(port, given, until, seen)
        trainer = threading.Thread(target=train, args=(folder / "run", until, random.Random(given.seed), faults))
        trainer.start()
        while any(thread.is_alive() for thread in threads) and server.poll() is None:
            time.sleep(5)
            samples.append(held(server.pid))
            first = first or (samples[-1][0] if time.monotonic() - begun > min(60, 20 * given.minutes) else 0)
            if len(samples) % 6 == 0:
                print(
                    f"{time.monotonic() - begun:6.0f} s  {samples[-1][0] / 1e6:5.0f} MB  {samples[-1][1]} threads  {dict(seen)}",
                    flush=True,
                )
        trainer.join()
        until = time.monotonic() + 60
        while server.poll() is None and held(server.pid)[1] > (os.cpu_count() or 1) + 6 and time.monotonic() < until:
            time.sleep(1)  # searches of people who left end
        last, number = held(server.pid) if server.poll() is None else (0, 0)
    finally:
        server.send_signal(signal.SIGINT)
        code = server.wait(30)
    peak = max((size for size, _ in samples), default=0)
    sizes = f"{first / 1e6:.0f} MB at first, {peak / 1e6:.0f} MB at most, {last / 1e6:.0f} MB at the end"
    print(f"{dict(seen)}: {sizes}, {number} threads, exit {code}; faults of the run: {faults}")
    failed = faults or seen["500"] or not last or last - first > MOST_GROWTH or any(":" in name for name in seen)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
