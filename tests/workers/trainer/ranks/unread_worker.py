"""Run by each rank: the trainer, with a standard output and error that nobody reads any more."""

import os
import sys
from pathlib import Path

from meshwise.workers.trainer import loop
from meshwise.workers.trainer.settings import Settings

reader, writer = os.pipe()
os.close(reader)
for stream in (1, 2):
    os.dup2(writer, stream)
loop.train(Settings.read(Path(sys.argv[1])))
