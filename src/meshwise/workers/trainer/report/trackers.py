"""Writers of a run's curves: TensorBoard, Weights & Biases, trackio, and a metrics file that Prometheus reads."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportMissingImports=false
import math
import os
from collections.abc import Mapping
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol

from meshwise.workers.trainer.contract.settings import Settings


class Tracker(Protocol):
    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Write the values after `step` steps."""
        ...

    def close(self) -> None: ...


def trackers(settings: Settings, folder: Path) -> list[Tracker]:
    """Return the trackers that the settings ask for; the launcher has checked that their packages are installed."""
    made: list[Tracker] = [TensorBoard(folder / "tensorboard")] if settings.tensorboard else []
    made += [Dashboard(name, settings, folder) for name in settings.track]
    return made + ([MetricsFile(Path(settings.metrics_file), settings.name)] if settings.metrics_file else [])


class TensorBoard:
    def __init__(self, folder: Path) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter

        self.writer: Any = SummaryWriter(str(folder))

    def log(self, step: int, values: Mapping[str, float]) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        self.writer.close()


class Dashboard:
    """Weights & Biases or trackio, which has the same functions."""

    def __init__(self, package: str, settings: Settings, folder: Path) -> None:
        self.package: Any = import_module(package)
        known = {key: value for key, value in asdict(settings).items() if key not in ("facts", "data", "eval_data")}
        where = {"dir": str(folder)} if package == "wandb" else {}
        self.package.init(project="meshwise", name=f"{settings.name}-{folder.name}", config=known, **where)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.package.log({name: value for name, value in values.items() if math.isfinite(value)}, step=step)

    def close(self) -> None:
        self.package.finish()


class MetricsFile:
    """The latest values as gauges in Prometheus' text format, replaced at once, as its textfile collector expects."""

    def __init__(self, path: Path, run: str) -> None:
        self.path, self.run, self.latest = path, run, dict[str, float]()

    def log(self, step: int, values: Mapping[str, float]) -> None:
        self.latest |= {"step": float(step), **values}
        label = self.run.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        lines: list[str] = []
        for name, value in self.latest.items():
            metric = "meshwise_" + "".join(c if c.isalnum() else "_" for c in name)
            lines += [f"# TYPE {metric} gauge", f'{metric}{{run="{label}"}} {_number(value)}']
        partial = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        partial.write_text("\n".join(lines) + "\n", encoding="utf-8")
        partial.replace(self.path)

    def close(self) -> None:
        """Leave the last values."""


def _number(value: float) -> str:
    return repr(value) if math.isfinite(value) else "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
