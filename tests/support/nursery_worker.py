"""Run as `python nursery_worker.py MODULE...`: imports them, then forks the ranks of each program named by a line of standard input."""

import importlib
import json
import os
import runpy
import signal
import sys
import traceback
from typing import Any

from meshwise.workers.trainer.contract.process.parent import die_with


def be(rank: int, job: dict[str, Any]) -> int:
    """Run the program in this fork as one rank."""
    die_with(job["parent"])
    os.environ.update(job["environment"], RANK=str(rank), LOCAL_RANK=str(rank))
    log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    module, *arguments = job["command"]
    try:
        if module == "-m":
            sys.argv = arguments
            runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)
        else:
            sys.argv = [module, *arguments]
            sys.path.insert(0, os.path.dirname(module))
            runpy.run_path(module, run_name="__main__")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


def run(job: dict[str, Any]) -> list[int]:
    """Return the exit codes of all ranks; if one fails, the others are killed."""
    ranks: dict[int, int] = {}
    job["parent"] = os.getpid()
    for rank in range(job["processes"]):
        if (pid := os.fork()) == 0:
            code = 1
            try:
                code = be(rank, job)
                sys.stdout.flush()
                sys.stderr.flush()
            finally:
                os._exit(code)
        ranks[pid] = rank
    codes = [0] * len(ranks)
    while ranks:
        pid, status = os.wait()
        codes[ranks.pop(pid)] = os.waitstatus_to_exitcode(status)
        if any(codes):
            for other in ranks:
                os.kill(other, signal.SIGKILL)
    return codes


if __name__ == "__main__":
    die_with(os.getppid())
    for name in sys.argv[1:]:
        importlib.import_module(name)
    # imports may print; answers have a stream of their own
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        print(json.dumps(run(json.loads(line))), file=answers, flush=True)
    os._exit(0)  # skip torch's shutdown, which takes a second
