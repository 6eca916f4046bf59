"""Run by each rank: the trainer, that is asked to stop when rank 0 has said so many steps."""

import os
import sys
from pathlib import Path

from meshwise.workers.trainer import loop
from meshwise.workers.trainer.ranks.meeting import STOP_FILE
from meshwise.workers.trainer.report.rows import Step
from meshwise.workers.trainer.report.watch import Watch
from meshwise.workers.trainer.settings import Settings

after = int(sys.argv[2])
stop = Path(os.environ[STOP_FILE])
saw = Watch.saw


def asking(self: Watch, one: Step) -> None:
    saw(self, one)
    if self.lead and one.step + 1 == after:
        stop.touch()


if after == 0:
    stop.touch()
Watch.saw = asking
loop.train(Settings.read(Path(sys.argv[1])))
