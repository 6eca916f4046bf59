"""Run by each rank: the trainer, that is asked to stop when rank 0 has said so many steps."""

import os
import sys
from pathlib import Path

from meshwise.trainer import loop
from meshwise.trainer.meeting import STOP_FILE
from meshwise.trainer.rows import Step
from meshwise.trainer.settings import Settings
from meshwise.trainer.watch import Watch

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
