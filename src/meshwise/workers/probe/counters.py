"""Counters of an NVIDIA GPU while it works (clocks, throttling, ECC errors, its PCIe link), and Xid errors of the kernel's log."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import re
import threading
from collections.abc import Sequence

import torch

from meshwise.workers import tool
from meshwise.workers.probe.rows import Row

FIELDS = (
    "clocks.sm", "clocks.max.sm", "temperature.gpu", "power.draw", "clocks_throttle_reasons.hw_slowdown",
    "clocks_throttle_reasons.hw_thermal_slowdown", "clocks_throttle_reasons.sw_thermal_slowdown",
    "clocks_throttle_reasons.hw_power_brake_slowdown", "ecc.errors.uncorrected.volatile.total", "ecc.errors.corrected.volatile.total",
    "retired_pages.pending", "remapped_rows.failure", "pcie.link.gen.current", "pcie.link.gen.max", "pcie.link.width.current",
    "pcie.link.width.max",
)  # fmt: skip
"""Names of nvidia-smi's --query-gpu; a driver may lack some."""
XID = re.compile(r"NVRM: Xid \(PCI:([0-9a-fA-F:.]+)\): (\d+)")


class Counters:
    """Reads a GPU's counters in the background, some time after its load has begun."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self.found: list[Row] = []
        self.thread: threading.Thread | None = None

    def start(self, after: float) -> None:
        if self.device.type == "cuda":
            self.thread = threading.Timer(after, self._read)
            self.thread.daemon = True
            self.thread.start()

    def rows(self) -> list[Row]:
        """Return the rows once they are read; none on a CPU."""
        if self.thread is not None:
            self.thread.join(2 * tool.SECONDS)
        return self.found

    def _read(self) -> None:
        facts = torch.cuda.get_device_properties(self.device)
        bus, which = f"{facts.pci_domain_id:04x}:{facts.pci_bus_id:02x}:{facts.pci_device_id:02x}", f"GPU-{facts.uuid}"
        values = _query(which, FIELDS) or {name: value for field in FIELDS for name, value in _query(which, (field,)).items()}
        self.found.append({"kind": "counters", "bus": bus, **values} if values else _missing("counters", "nvidia-smi shows none"))
        log = _output("dmesg")
        own = [match[2] for match in XID.finditer(log) if match[1].lower().startswith(bus)]
        self.found.append(
            {"kind": "xid", "codes": " ".join(own[-200:])} if log else _missing("Xid errors", "dmesg shows nothing here")
        )


def _query(gpu: str, fields: Sequence[str]) -> dict[str, str]:
    """Return fields of nvidia-smi that have a value; none where it does not know one of them."""
    text = _output("nvidia-smi", "-i", gpu, f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits")
    values = [value.strip()[:60] for value in text.strip().split(",")]
    pairs = zip(fields, values, strict=True) if len(values) == len(fields) else ()
    return {name: value for name, value in pairs if value and not value.startswith(("[", "N/A"))}


def _missing(what: str, why: str) -> Row:
    return {"kind": "missing", "what": what, "why": why}


def _output(*command: str) -> str:
    """Return what a program prints; '' where it fails or is not there."""
    try:
        return tool.output(*command)
    except tool.ToolError:
        return ""
