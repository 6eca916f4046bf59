"""What `meshwise bench` itself costs and how exact its clock is, against an endpoint whose every token is sent at a known moment.

    python benchmarks/bench_cost.py

The endpoint runs in a process of its own and keeps when it sent each token, by the clock that both processes share. The cost is the
processor time of the client over the tokens it read. A token came between the moments before and after the call that sent it, which on a
loaded machine may be far apart; the timing error is how far from these the client saw it.
"""

import asyncio
import json
import multiprocessing
import resource
import statistics
import sys
import time
from multiprocessing.connection import Connection
from typing import Any

from meshwise.run.bench import client
from meshwise.run.bench.speeds import Setting, quantile, run_of

MUST_COST, MUST_ERROR = 0.05, 1e-3
"""Of one core per 1,000 tokens/s, and seconds of timing error."""
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def chunk(values: object) -> bytes:
    data = b"data: " + (json.dumps(values).encode() if values else b"[DONE]") + b"\n\n"
    return f"{len(data):x}\r\n".encode() + data + b"\r\n"


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, sent: dict[int, list[tuple[float, float]]]) -> None:
    """Tokens at even times from a common start, each as long as llama.cpp's events are."""
    head = await reader.readuntil(b"\r\n\r\n")
    size = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
    asked = json.loads(await reader.readexactly(size))
    writer.write(HEAD)
    user, count, gap = asked["user"], asked["max_tokens"], asked["gap"]
    begin = time.perf_counter() + 0.1
    for i in range(count):
        await asyncio.sleep(max(0.0, begin + i * gap - time.perf_counter()))
        event = {"choices": [{"text": " word", "index": 0, "logprobs": None, "finish_reason": None}], "created": 1794730876}
        event |= {
            "model": "scripted",
            "system_fingerprint": "b0-unknown",
            "object": "text_completion",
            "id": "chatcmpl-" + "x" * 32,
        }
        data = chunk(event)
        before = time.perf_counter()
        writer.write(data)
        sent.setdefault(user, []).append((before, time.perf_counter()))
    writer.write(chunk({"choices": [], "usage": {"completion_tokens": count, "prompt_tokens": 1}}) + chunk(None) + b"0\r\n\r\n")
    await writer.drain()
    writer.close()


def endpoint(pipe: Connection) -> None:
    sent: dict[int, list[tuple[float, float]]] = {}

    async def serve() -> None:
        server = await asyncio.start_server(lambda r, w: answer(r, w, sent), "127.0.0.1", 0)
        pipe.send(server.sockets[0].getsockname()[1])
        while True:
            while not pipe.poll():
                await asyncio.sleep(0.02)
            if not pipe.recv():
                return
            pipe.send(dict(sent))
            sent.clear()

    asyncio.run(serve())


def cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def trial(port: int, pipe: Connection, users: int, tokens: int, rate: float) -> dict[str, float]:
    """`users` streams of `tokens` tokens, `rate` tokens a second in all."""
    where = client.Address(host="127.0.0.1", port=port)
    asked: list[dict[str, Any]] = [{"user": i, "max_tokens": tokens, "gap": users / rate} for i in range(users)]
    before, begin = cpu(), time.perf_counter()
    replies = asyncio.run(client.ask_all(where, "/v1/completions", asked, patience=60))
    run = run_of(replies, Setting(prompt=1, output=tokens, users=users))
    spent, took = cpu() - before, time.perf_counter() - begin
    pipe.send(True)
    sent: dict[int, list[tuple[float, float]]] = pipe.recv()
    moments = [(seen, *span) for i, reply in enumerate(replies) for seen, span in zip(reply.arrivals, sent[i], strict=True)]
    late = sorted(max(first - seen, seen - last, 0.0) for seen, first, last in moments)
    return {
        "users": users,
        "tokens/s": run.decode,
        "core per 1,000 tokens/s": spent / (users * tokens) * 1000,
        "median error, ms": 1e3 * statistics.median(late),
        "p99 error, ms": 1e3 * quantile(late, 0.99),
        "seconds": took,
    }


def main() -> int:
    here, there = multiprocessing.Pipe()
    process = multiprocessing.Process(target=endpoint, args=(there,), daemon=True)
    process.start()
    port = here.recv()
    trial(port, here, 1, 50, 100)  # what is imported and compiled at the first use
    found = [trial(port, here, users, tokens, rate) for users, tokens, rate in ((1, 500, 100), (8, 500, 1000), (64, 150, 2000))]
    here.send(False)
    process.join(5)
    print("  ".join(f"{name:>24}" for name in found[0]))
    for row in found:
        print("  ".join(f"{value:>24.4g}" for value in row.values()))
    # A single slow stream wakes the client once per token, at most 100 times a second: its share of a core is small all the same.
    cost = max(row["core per 1,000 tokens/s"] for row in found if row["users"] > 1)
    error = max(row["p99 error, ms"] for row in found) / 1e3
    alone = found[0]["core per 1,000 tokens/s"] * found[0]["tokens/s"] / 1000
    print(f"one user at {found[0]['tokens/s']:.0f} tokens/s takes {100 * alone:.2f}% of a core")
    print(f"cost {100 * cost:.2f}% of a core per 1,000 tokens/s (must be under {100 * MUST_COST:g}%)")
    print(f"timing error of 99 in 100 tokens within {1e3 * error:.3f} ms (must be under {1e3 * MUST_ERROR:g} ms)")
    return int(cost > MUST_COST or error > MUST_ERROR)


if __name__ == "__main__":
    sys.exit(main())
