"""Named points of a start and of a checkpoint at which tests kill a process. No torch.

`MESHWISE_KILL_AT=NAME:FILE`: the first process that reaches the point NAME while FILE exists deletes FILE, and kills with SIGKILL the
processes whose ids FILE lists, or itself if it lists none. Without the variable a point does nothing.
"""

import os
import signal
from pathlib import Path

KILL_AT = "MESHWISE_KILL_AT"

LAUNCHER = {
    "launcher locked": "the launcher holds the folder, nothing is written",
    "launcher wrote settings": "config.json is written, no process is started",
    "launcher started agent": "the agent is a process, and has not imported anything",
}
AGENT = {
    "agent ready": "the agent has imported torch, before it starts workers",
    "agent started workers": "the workers are processes, and have not imported anything",
}
WORKER = {
    "worker begins": "a worker runs, before it imports torch",
    "worker imported": "a worker has imported torch, before it meets the others",
    "worker connected": "the workers have met, nothing is loaded",
    "worker resumed": "weights and state are loaded, unfinished checkpoints are removed",
    "log trimmed": "steps.jsonl is cut to the checkpoint's step, no step is done",
    "step done": "a step is done and in steps.jsonl",
    "checkpoint begins": "the state is about to be copied",
    "checkpoint files written": "all files of a rank are written, not all ranks' are",
    "checkpoint unmarked": "all files of all ranks are written, the marker is not",
    "checkpoint marker partial": "the marker is written under its temporary name",
    "checkpoint marked": "the marker is in place, old checkpoints are not removed",
    "checkpoint unmarking": "the marker of an old checkpoint is removed, its files are not",
    "steps done": "the last step is done and saved, measurements are not written",
    "weights partial": "the files of --save are written under temporary names",
}
POINTS = LAUNCHER | AGENT | WORKER


def reach(name: str) -> None:
    """Kill what `MESHWISE_KILL_AT` asks for, if it names this point."""
    point, _, file = os.environ.get(KILL_AT, "").partition(":")
    if point != name:
        return
    try:
        claimed = Path(f"{file}.{os.getpid()}")
        os.rename(file, claimed)  # of several processes at this point, one goes on
        victims = [int(word) for word in claimed.read_text(encoding="ascii").split()]
        claimed.unlink()
    except FileNotFoundError:
        return
    for pid in victims or [os.getpid()]:
        os.kill(pid, signal.SIGKILL)
