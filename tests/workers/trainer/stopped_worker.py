"""Run by each rank: the trainer, asked to stop once rank 0 has recorded the given number of steps."""

import os
import sys
from pathlib import Path

from meshwise.workers.trainer import loop
from meshwise.workers.trainer.contract.process.stop import STOP_FILE
from meshwise.workers.trainer.contract.rows import Step
from meshwise.workers.trainer.contract.settings import Settings
from meshwise.workers.trainer.report.recorder import Recorder

after = int(sys.argv[2])
stop = Path(os.environ[STOP_FILE])
record = Recorder.record


def asking(self: Recorder, step: Step) -> None:
    record(self, step)
    if self.lead and step.step + 1 == after:
        stop.write_text("stop")


if after == 0:
    stop.write_text("stop")
Recorder.record = asking
loop.train(Settings.read(Path(sys.argv[1])))
