"""Question: everything that the cost of a training step depends on beside the layout."""

from dataclasses import dataclass, replace

from meshwise.catalogue.calibrations import Calibration
from meshwise.catalogue.chips import Chip, Cluster
from meshwise.cost.work import Train
from meshwise.models.model import Model


@dataclass(frozen=True)
class Question:
    """All that pricing needs beside the layouts."""

    model: Model
    cluster: Cluster
    chip: Chip
    work: Train
    calibration: Calibration

    @staticmethod
    def of(model: Model, cluster: Cluster, work: Train, calibration: Calibration) -> "Question":
        chip = cluster.chip
        return Question(model, cluster, chip, replace(work, framework=work.framework.on(chip.kind)), calibration)
