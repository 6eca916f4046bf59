"""Memory of served models against llama.cpp's own logs and dry runs: the largest error of each kind."""

import csv
from collections.abc import Iterator

from meshwise.catalogue import files
from meshwise.catalogue.engines import Runtime, find_runtime
from meshwise.cost.serve.memory.buffers import Footprint, footprints
from meshwise.cost.serve.memory.cache import CacheRequest, layer_caches
from meshwise.cost.serve.memory.placement import split_layers
from meshwise.models.find import find_model
from meshwise.models.formats import find_format, weights

MIB = 2.0**20
COLUMNS = {
    "llamacpp_fit_dryrun": ("llama.cpp", "n_devices", ("model_mib", "context_mib", "compute_mib")),
    "xiongjiedai_memory_buffers": ("llama.cpp-2024-05", "n_gpus", ("weights_mib", "kv_mib", "compute_mib")),
}


def rows(table: str) -> Iterator[dict[str, str]]:
    with (files.BUILT_IN / "measurements" / f"{table}.csv").open(encoding="utf-8") as file:
        yield from csv.DictReader(file)


def predicted(row: dict[str, str], runtime: Runtime, devices: int) -> Footprint:
    """Return the predicted footprint of the host or device that a row is about."""
    model, held = find_model(row["model"]), CacheRequest(context=int(row["n_ctx"]))
    stored = weights(model, find_format(row["quant"]), by_file=runtime.files_by_order)
    placed = split_layers(stored, layer_caches(model, runtime, held), [1.0] * devices)
    flash = {"on": True, "off": False}.get(row.get("flash_attn", ""))
    number = "".join(c for c in row["device"] if c.isdecimal())
    host = not number and row["device"] != "Metal"
    return footprints(model, runtime, placed, held, flash=flash)[0 if host else 1 + int(number or 0)]


def main() -> None:
    print(f"{'table':28} {'rows':>5} {'weights':>10} {'cache':>10} {'compute':>10}   largest error in MiB")
    for table, (engine, count, columns) in COLUMNS.items():
        runtime, worst, seen = find_runtime(engine), [0.0, 0.0, 0.0], 0
        for row in rows(table):
            footprint = predicted(row, runtime, int(row[count]))
            seen += 1
            sizes = (footprint.weights, footprint.cache, footprint.compute)
            for i, (column, value) in enumerate(zip(columns, sizes, strict=True)):
                if row[column]:
                    whole = "." not in row[column]  # the dry run rounds down to whole MiB
                    error = abs((value // MIB if whole else value / MIB) - float(row[column]))
                    worst[i] = max(worst[i], error)
        print(f"{table:28} {seen:5} {worst[0]:10.2f} {worst[1]:10.2f} {worst[2]:10.2f}")


if __name__ == "__main__":
    main()
