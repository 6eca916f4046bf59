"""`torchrun -m meshwise.trainer settings.json`: one worker of a run."""

import os
import sys
from pathlib import Path

from meshwise.trainer.faults import die_with_parent
from meshwise.trainer.loop import train
from meshwise.trainer.settings import Settings

if __name__ == "__main__":
    if "TORCHELASTIC_RUN_ID" in os.environ:  # started by torchrun
        die_with_parent()
    train(Settings.read(Path(sys.argv[1])))
