"""`torchrun -m meshwise.workers.trainer settings.json`: run one worker of a training run."""

import os
import sys
from pathlib import Path

from meshwise.workers.trainer.loop import train
from meshwise.workers.trainer.ranks.faults import die_with_parent
from meshwise.workers.trainer.settings import Settings

if __name__ == "__main__":
    if "TORCHELASTIC_RUN_ID" in os.environ:  # started by torchrun
        die_with_parent()
    train(Settings.read(Path(sys.argv[1])))
