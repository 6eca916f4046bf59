"""The rates that the cost model predicts for a chip and its links, by the names of the figures that a preflight measures."""

import numpy as np

from meshwise.catalogue import calibrations
from meshwise.catalogue.chips import Cluster
from meshwise.cost.train.compute import Device, product

PRODUCT_SIDE = 4096  # of the product that is repeated on a GPU: m, n and k
HOST_SHARE = 0.8  # share of a PCIe link's rate that copies of pinned memory reach (H200: 55 of 64 GB/s, docs/reports/loop.md)
LIMITS = {"matrix products": 0.75, "memory": 0.75, "host link": 0.5, "send inside": 0.4, "send between": 0.25}
"""Share of the prediction below which a device or link is not what it should be. One message at a time uses a part of several links."""


def rates(cluster: Cluster) -> dict[str, float]:
    """Return FLOP/s and bytes per second by figure; nothing for CPUs, whose datasheets do not tell."""
    chip = cluster.chip
    if chip.kind == "cpu":
        return {}
    fit = calibrations.fitted_to(chip, "meshwise") or calibrations.prior_of(chip)
    device = Device.of(chip, fit, "bf16")
    side = float(PRODUCT_SIDE)
    found = {"matrix products": 2 * side**3 / float(np.ravel(product(device, side, side, side))[0]), "memory": device.bandwidth}
    found |= {"host link": HOST_SHARE * chip.host.bandwidth} if chip.host else {}
    link = cluster.node.link
    found |= {"send inside": fit.link * link.bandwidth} if link else {}
    found |= {"send between": fit.network * cluster.network.bandwidth / cluster.node.devices} if cluster.network else {}
    return found
