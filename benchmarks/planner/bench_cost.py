"""CPU cost and timing error of `meshwise bench` itself, against an endpoint that sends every token at a known time.

    python benchmarks/planner/bench_cost.py

The endpoint runs in its own process and records when it sends each token, by the clock that both processes share. The cost is the
client's CPU time per token read. A token is sent between the times before and after the call that writes it, which may be far apart on a
loaded machine; the timing error is the distance from that interval to the time at which the client saw the token.
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
    """Send tokens at even intervals, in events as long as llama.cpp's."""
    head = await reader.readuntil(b"\r\n\r\n")
    size = next(int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
    request = json.loads(await reader.readexactly(size))
    writer.write(HEAD)
    user, count, gap = request["user"], request["max_tokens"], request["gap"]
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
    """Measure `users` streams of `tokens` tokens each, at `rate` tokens per second in total."""
    where = client.Address(host="127.0.0.1", port=port)
    requests: list[dict[str, Any]] = [{"user": i, "max_tokens": tokens, "gap": users / rate} for i in range(users)]
    before, begin = cpu(), time.perf_counter()
    replies = asyncio.run(client.ask_all(where, "/v1/completions", requests, patience=60))
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
    pipe, endpoint_pipe = multiprocessing.Pipe()
    process = multiprocessing.Process(target=endpoint, args=(endpoint_pipe,), daemon=True)
    process.start()
    port = pipe.recv()
    trial(port, pipe, 1, 50, 100)  # warm-up: imports and caches of the first use
    trials = [trial(port, pipe, users, tokens, rate) for users, tokens, rate in ((1, 500, 100), (8, 500, 1000), (64, 150, 2000))]
    pipe.send(False)
    process.join(5)
    print("  ".join(f"{name:>24}" for name in trials[0]))
    for row in trials:
        print("  ".join(f"{value:>24.4g}" for value in row.values()))
    # A single slow stream wakes the client once per token, at most 100 times a second, so its share of a core is small in any case.
    cost = max(row["core per 1,000 tokens/s"] for row in trials if row["users"] > 1)
    error = max(row["p99 error, ms"] for row in trials) / 1e3
    single = trials[0]["core per 1,000 tokens/s"] * trials[0]["tokens/s"] / 1000
    print(f"one user at {trials[0]['tokens/s']:.0f} tokens/s takes {100 * single:.2f}% of a core")
    print(f"cost {100 * cost:.2f}% of a core per 1,000 tokens/s (must be under {100 * MUST_COST:g}%)")
    print(f"99th percentile of the timing error {1e3 * error:.3f} ms (must be under {1e3 * MUST_ERROR:g} ms)")
    return int(cost > MUST_COST or error > MUST_ERROR)


if __name__ == "__main__":
    sys.exit(main())
