"""`python -m meshwise.workers.decoder job.json`: print a line of JSON for every point as soon as it is measured.

Under torchrun only rank 0 prints; the others print only when they fail.
"""

# pyright: basic
import json
import os
import sys
import time
from dataclasses import asdict
from pathlib import Path

from meshwise.workers.decoder.settings import Job


def main(path: Path) -> int:
    begin = time.monotonic()
    job = Job.read(path)
    try:
        import torch

        from meshwise.workers.decoder.session import build, measure
    except ImportError as error:
        return say(error=f"{error.name} is not installed", code=3)
    if job.device == "cuda" and not torch.cuda.is_available():
        return say(error="this machine has no CUDA device", code=3)
    try:
        timed = build(job)
    except torch.OutOfMemoryError:
        return say(error="out of memory: the weights do not fit on the device", code=4)
    except (ValueError, KeyError, OSError, RuntimeError) as error:
        return say(error=f"{type(error).__name__}: {' '.join(str(error).split())[:300]}", code=3)
    name = torch.cuda.get_device_name(0) if job.device == "cuda" else "cpu"
    say(event="ready", device=name, torch=torch.__version__, params=timed.params, seconds=time.monotonic() - begin)
    prompts: dict[int, list[float]] = {}
    for point in job.points:
        if job.seconds and time.monotonic() - begin > job.seconds:
            return say(error=f"stopped after {job.seconds:g} s, before {point}", code=0)
        try:
            result = measure(timed, point, job, prompts)
        except torch.OutOfMemoryError:
            return say(error=f"out of memory at {point}", code=4)
        say(event="point", **asdict(point), **result, variant=timed.variant, seconds=time.monotonic() - begin)
    return 0


def say(code: int = 0, **values: object) -> int:
    if os.environ.get("RANK", "0") == "0" or code:
        print(json.dumps(values), flush=True)
    return code


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
