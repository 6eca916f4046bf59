"""`torchrun -m meshwise.workers.trainer settings.json`: run one worker of a training run."""

import sys
from pathlib import Path

from meshwise.workers.trainer.contract.process.kill_points import reach
from meshwise.workers.trainer.contract.process.parent import die_with_agent
from meshwise.workers.trainer.contract.settings import Settings


def main(settings: Path) -> None:
    # before torch is imported, which takes seconds: an agent that is killed meanwhile must take this worker with it
    die_with_agent()
    reach("worker begins")
    from meshwise.workers.trainer.loop import train

    reach("worker imported")
    train(Settings.read(settings))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
