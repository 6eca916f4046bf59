"""Question: everything except the layout that the cost of a training step depends on."""

from dataclasses import dataclass, replace

from meshwise.catalogue.calibrations import Calibration
from meshwise.catalogue.chips import SERVER_BANDWIDTH, Chip, Cluster
from meshwise.catalogue.frameworks import Framework
from meshwise.cost.finetune import KBIT_BASES, Finetune
from meshwise.cost.precision import is_narrow
from meshwise.cost.work import Train
from meshwise.models.model import Model


def stored_by(f: Framework, finetune: Finetune, precision: str) -> Finetune:
    """Return a method with adapters as a program stores its frozen base and its adapters."""
    return replace(
        finetune,
        narrow=f.frozen_narrow and precision not in ("bf16", "fp16"),
        wide_rest=f.kbit_casts and finetune.stored in KBIT_BASES,
        quantizes_experts=f.quantizes_experts,
        adapter_bytes=float((f.quantized_adapter_bytes if finetune.quantized else 0) or f.adapter_bytes),
    )


@dataclass(frozen=True)
class Question:
    """A model on a cluster with a training task and a calibration."""

    model: Model
    cluster: Cluster
    chip: Chip
    work: Train
    calibration: Calibration
    host_bandwidth: float = SERVER_BANDWIDTH  # bytes per second of a node's host memory, for updates of offloaded optimizer state

    @staticmethod
    def of(
        model: Model, cluster: Cluster, work: Train, calibration: Calibration, host_bandwidth: float = SERVER_BANDWIDTH
    ) -> "Question":
        """Build a question for the cluster's chip and the framework on it, in 16 bits where it has no matrix units for fewer."""
        chip = cluster.chip
        framework = work.framework.with_compile() if work.compiled else work.framework
        precision = work.precision if work.precision == "fp16" or is_narrow(work.precision, chip) else "bf16"
        if work.finetune.adapts:
            work = replace(work, finetune=stored_by(framework, work.finetune, precision))
        work = replace(work, framework=framework.on(chip.kind, chip.architecture), precision=precision)
        return Question(model, cluster, chip, work, calibration, host_bandwidth)
