"""CPU seconds of the simulation: Mooncake's hour on 8 copies, and with --day a day of a million conversations; and its memory."""

import resource
import sys
from pathlib import Path
from time import process_time

sys.path.append(str(Path(__file__).parents[2] / "tests"))

from meshwise.cost.serve.load.requests import Limits
from meshwise.replay.engine.clock import Clock, Engine, Fleet
from meshwise.replay.engine.record import Record
from meshwise.replay.engine.times import PassTimes
from meshwise.replay.traces.made import make
from meshwise.replay.traces.trace import Trace, of_requests, open_trace
from support.loads import replica

LIMITS = Limits(sequences=1024, tokens=8192, cache=5e5)
"""Llama 3.1 8B in fp8 on an H100 with vLLM."""


def timed(trace: Trace, seconds: float, router: str) -> str:
    """Replay a trace on 8 copies, and say how long that took."""
    engine = Engine(times=PassTimes(replica()), limits=LIMITS, block=trace.block)
    begun = process_time()
    record = Clock(Fleet(engine=engine, copies=8, router=router), Record(seconds)).run(trace)
    took = process_time() - begun
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    done = len(record.at)
    return f"{trace.name}, {router}: {done:,} requests in {took:.2f} s of CPU, {1e6 * took / done:.0f} us each; {most:.0f} MiB"


def main() -> None:
    held = of_requests(open_trace("mooncake-conversation"), "mooncake-conversation")
    for router in ("least-loaded", "round-robin", "prefix"):
        print(timed(held, 3537.0, router))
    if "--day" in sys.argv:
        print(timed(make("conversation", 12.0, 86400.0, day=0.5), 86400.0, "least-loaded"))


if __name__ == "__main__":
    main()
