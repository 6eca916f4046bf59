"""`python tools/soak.py [--minutes 120]`: use the page of `meshwise ui` as several people do for a long time, and see what it holds.

Some ask, some leave before the answer, some upload, some send what no page sends. Prints resident memory and threads as it goes; fails
where the server ends, answers with an error of its own, or holds more than MOST_GROWTH above what it held once every page was open.
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
from pathlib import Path
from urllib.parse import urlencode

PROGRAM = "import sys; from meshwise.ui.cli.main import main; sys.argv[0] = 'meshwise'; main()"
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


def ask(port: int, rng: random.Random, seen: Counter[str]) -> None:
    """Do what one person does once."""
    kind = rng.choices(("stay", "leave", "upload", "bytes"), (6, 3, 1, 1))[0]
    patience = 60 if kind != "leave" else rng.uniform(0.02, 0.5)
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
                + rng.randbytes(rng.randrange(2000))
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


def people(port: int, users: int, until: float, seed: int, seen: Counter[str]) -> list[threading.Thread]:
    def person(number: int) -> None:
        rng = random.Random(f"{seed} {number}")
        while time.monotonic() < until:
            ask(port, rng, seen)
            time.sleep(rng.uniform(0, 0.3))

    threads = [threading.Thread(target=person, args=(number,), daemon=True) for number in range(users)]
    for thread in threads:
        thread.start()
    return threads


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--users", type=int, default=6)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    seen: Counter[str] = Counter()
    server = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, "ui", "--port", "0", "--no-browser"], stdout=subprocess.PIPE, text=True
    )
    assert server.stdout is not None
    port = int(server.stdout.readline().split("127.0.0.1:")[1].split("/")[0])
    first, begun, samples = 0, time.monotonic(), list[tuple[int, int]]()
    try:
        threads = people(port, given.users, begun + 60 * given.minutes, given.seed, seen)
        while any(thread.is_alive() for thread in threads) and server.poll() is None:
            time.sleep(5)
            samples.append(held(server.pid))
            first = first or (samples[-1][0] if time.monotonic() - begun > min(60, 20 * given.minutes) else 0)
            if len(samples) % 6 == 0:
                print(
                    f"{time.monotonic() - begun:6.0f} s  {samples[-1][0] / 1e6:5.0f} MB  {samples[-1][1]} threads  {dict(seen)}",
                    flush=True,
                )
        until = time.monotonic() + 60
        while server.poll() is None and held(server.pid)[1] > (os.cpu_count() or 1) + 6 and time.monotonic() < until:
            time.sleep(1)  # searches of people who left end
        last, number = held(server.pid) if server.poll() is None else (0, 0)
    finally:
        server.send_signal(signal.SIGINT)
        code = server.wait(30)
    peak = max((size for size, _ in samples), default=0)
    sizes = f"{first / 1e6:.0f} MB at first, {peak / 1e6:.0f} MB at most, {last / 1e6:.0f} MB at the end"
    print(f"{dict(seen)}: {sizes}, {number} threads, exit {code}")
    failed = seen["500"] or not last or last - first > MOST_GROWTH or any(":" in name for name in seen)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
