"""`torchrun -m meshwise.trainer settings.json`: one worker of a run."""

import sys
from pathlib import Path

from meshwise.trainer.loop import train
from meshwise.trainer.settings import Settings

if __name__ == "__main__":
    train(Settings.read(Path(sys.argv[1])))
