"""Run by each rank: the trainer, with closed pipes as standard output and error."""

import os
import sys
from pathlib import Path

from meshwise.workers.trainer import loop
from meshwise.workers.trainer.contract.settings import Settings

reader, writer = os.pipe()
os.close(reader)
for stream in (1, 2):
    os.dup2(writer, stream)
loop.train(Settings.read(Path(sys.argv[1])))
