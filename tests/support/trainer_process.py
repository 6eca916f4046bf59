"""`meshwise run` of a tiny model as a process that tests can signal and kill."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

TINY: dict[str, Any] = {
    "model_type": "llama",
    "vocab_size": 256,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
    "initializer_range": 0.1,
}
PROGRAM = "import sys; from meshwise.ui.cli.main import main; sys.argv[0] = 'meshwise'; main()"
PATIENCE = 180.0


class Training:
    """A started run with its folder."""

    def __init__(
        self, out: Path, *options: str, before: tuple[str, ...] = (), output: int | None = None, **environment: str
    ) -> None:
        self.out = out
        config = out.parent / "tiny.json"
        config.write_text(json.dumps(TINY))
        asked = ["run", str(config), "--device", "cpu", "--batch", "8", "--seq", "16", "--out", str(out), *options]
        self.log = out.parent / f"{out.name}-{time.monotonic_ns()}.log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [*before, sys.executable, "-c", PROGRAM, *asked],
                env=os.environ | {"OMP_NUM_THREADS": "1"} | environment, stdout=log if output is None else output, stderr=subprocess.STDOUT,
            )  # fmt: skip

    def printed(self) -> str:
        return self.log.read_text()

    def rows(self) -> list[dict[str, Any]]:
        path = self.out / "steps.jsonl"
        lines = path.read_text().splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]

    def losses(self) -> list[float]:
        """Return the losses of all steps, each of which must appear once."""
        rows = self.rows()
        assert [row["step"] for row in rows] == list(range(len(rows))), [row["step"] for row in rows]
        return [row["loss"] for row in rows]

    def until(self, holds: Callable[[], Any]) -> Any:
        end = time.monotonic() + PATIENCE
        while time.monotonic() < end:
            if found := holds():
                return found
            assert self.process.poll() is None, self.printed()[-4000:]
            time.sleep(0.02)
        self.process.kill()
        raise AssertionError(f"waited {PATIENCE} s: {self.printed()[-4000:]}")

    def after(self, steps: int) -> None:
        """Wait until this many steps are done."""
        self.until(lambda: len(self.rows()) >= steps)

    def workers(self) -> dict[int, int]:
        """Return the process ids of the ranks."""
        found: dict[int, int] = {}
        for pid in descendants(self.process.pid):
            words = environment_of(pid)
            if "RANK" in words and "LOCAL_RANK" in words:
                found[int(words["RANK"])] = pid
        return found

    def hurt(self, rank: int, how: signal.Signals) -> None:
        os.kill(self.until(lambda: self.workers().get(rank)), how)

    def until_gone(self, family: list[int]) -> None:
        self.process.wait(PATIENCE)
        end = time.monotonic() + 60
        while alive(family):
            assert time.monotonic() < end, alive(family)
            time.sleep(0.05)

    def end(self) -> int:
        try:
            return self.process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise AssertionError(self.printed()[-4000:]) from None


def environment_of(pid: int) -> dict[str, str]:
    try:
        parts = Path(f"/proc/{pid}/environ").read_text().split("\0")
    except OSError:
        return {}
    return dict(part.split("=", 1) for part in parts if "=" in part)


def descendants(pid: int) -> list[int]:
    try:
        children = [int(word) for task in Path(f"/proc/{pid}/task").iterdir() for word in (task / "children").read_text().split()]
    except OSError:
        return []
    return [one for child in children for one in (child, *descendants(child))]


def alive(pids: list[int]) -> list[int]:
    """Return the processes that still run; zombies do not count."""

    def runs(pid: int) -> bool:
        try:
            return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
        except OSError:
            return False

    return [pid for pid in pids if runs(pid)]
