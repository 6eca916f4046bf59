"""Compare fine-tuning measured by finetune_on_gpu.py with its predictions: python benchmarks/trainer/finetune_memory.py FILE [--parts]"""

import json
import sys
from pathlib import Path

from meshwise.cost.axes import RECOMPUTE
from meshwise.cost.layout import Layouts
from meshwise.cost.train.step import evaluate
from meshwise.plan.ask import TrainAsk
from meshwise.plan.train import lookup
from meshwise.units import GIB

METHODS = {"lora": "lora:16", "qlora": "qlora:16", "dora": "dora:16", "frozen": "freeze:0", "full": "full"}


def main(path: Path, on: str = "1xh200") -> None:
    for name, row in json.loads(path.read_text()).items():
        if "seconds" not in row:
            continue
        method = next(text for word, text in METHODS.items() if f"-{word}" in name)
        if "-qlora" in name:
            method = METHODS["qlora"]
        ask = TrainAsk(row["model"], on=on, batch=row["batch"], seq=row["seq"], framework="meshwise", finetune=method)
        way = "full" if "checkpointing" in name or "14b" in name else "none"
        cost = evaluate(lookup.question(ask), Layouts.of(mbs=row["batch"], recompute=RECOMPUTE.index(way)))
        peak, step = float(cost.peak[0]) / GIB, float(cost.step[0])
        print(
            f"{name:32} {row['memory']:6.2f} GiB, predicted {peak:6.2f} ({100 * (peak / row['memory'] - 1):+.1f}%)   "
            f"{row['seconds']:.4f} s, predicted {step:.4f} ({100 * (step / row['seconds'] - 1):+.1f}%)"
        )
        if "--parts" in sys.argv:
            print("   ", {part: round(float(value[0]) / GIB, 2) for part, value in cost.memory.items()})
            print("   ", {part: round(1e3 * float(value[0]), 1) for part, value in cost.time.items() if value[0] > 1e-4})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
