"""Parse pods and slices of chips whose links form a torus: 'tpu-v5p:16x20x28', '4 pods of tpu-v5p', '2 x v5e-256'."""

import math
import re
from dataclasses import replace

from meshwise.catalogue.chips import Chip, Cluster, Node, known_chip
from meshwise.errors import UserError, quoted

MAX_DEVICES = 10**7


def number(digits: str, text: str) -> int:
    """Parse a number of devices, nodes or chips along an axis."""
    if len(digits) > 8 or not int(digits):
        raise UserError(f"cluster {quoted(text)}: {quoted(digits)} is not a number of devices from 1 to {MAX_DEVICES:,}")
    return int(digits)


def one_pod(torus: str) -> Cluster:
    """Parse the torus of a cluster file, which is a single pod."""
    cluster = torus_of(torus.lower(), torus)
    if cluster is None or cluster.node_count > 1:
        raise UserError(f"torus: {quoted(torus)} is not one torus such as tpu-v5p:16x20x28")
    return cluster


def torus_of(body: str, text: str) -> Cluster | None:
    """Parse one or several pods of a chip whose links form a torus; None when the chip has no torus."""
    counted = re.search(r"(?<!\d)(\d+)\s*pods?\b(?:\s+of\b)?", body)
    rest = body.replace(counted[0], "", 1) if counted else body
    match = re.fullmatch(r"(?:(\d+)\s*x\s*)?([a-z][\w .-]*)(?::\s*([\dx]+))?", rest.strip(" ,:"))
    chip = known_chip(match[2]) if match else None
    if match is None or chip is None or chip.kind != "tpu":
        return None
    if match[1] and not match[3]:
        raise UserError(shape_missing(chip, text))
    if match[1] and counted:
        twice = f"'{match[1]}x' and {quoted(counted[0].strip())}"
        raise UserError(f"cluster {quoted(text)}: the number of pods is given twice, {twice}")
    pods = number(counted[1] if counted else match[1] or "1", text)
    shape = tuple(number(side, text) if side else 0 for side in match[3].split("x")) if match[3] else _whole_pod(chip, text)
    _check_torus(shape, chip, text)
    return _pods(shape, chip, pods, text)


CORES_PER_CHIP = 2
"""TensorCores that names of slices of TPU v2 to v4 and v5p count: v5p-128 has 64 chips. Later names count chips: v5e-256."""
SLICES = re.compile(r"(?:(\d+)\s*(?:x|\*|slices? of)\s*)?(?:tpu[ -]?)?(v\d+[a-z]*)-(\d+)(?![\w.])")


def slices_in_text(text: str, chip: Chip | None = None) -> Cluster | None:
    """Return the slices that a text names, '32 x v5e-256' or 'v5p-128'; None where it names none. With `chip`, also 'tpu-v5p-128' for 128
    chips: a whole slice, or as many pods as that takes."""
    plain = text.lower().replace("×", "x")
    if chip and plain.startswith(f"{chip.key}-"):
        return _slices(chip, int(plain.removeprefix(f"{chip.key}-")), 0, text)
    match = SLICES.search(plain)
    named = known_chip(f"tpu-{match[2]}") if match else None
    if match is None or named is None:
        return None
    cores = 1 if match[2] in ("v5e", "v6e") or match[2] > "v6" else CORES_PER_CHIP
    return _slices(named, number(match[3], text) // cores, number(match[1] or "1", text), text)


def _slices(chip: Chip, chips: int, slices: int, text: str) -> Cluster:
    """Build slices of this many chips. `slices` 0: as many equal ones as needed, none larger than a pod."""
    if not chips:
        raise UserError(f"cluster {quoted(text)}: a slice needs at least one chip")
    most = math.prod(chip.torus.pod) if chip.torus and chip.torus.pod else chips
    count = slices or -(-chips // most)
    if not slices and chips % count:
        raise UserError(f"cluster {quoted(text)}: {chips} chips are not a whole number of pods of {chip.name}")
    each = chips if slices else chips // count
    shape = _compact(each, chip.link.axes if chip.link else 3)
    if each > most:
        raise UserError(f"cluster {quoted(text)}: a slice of {each} chips is larger than a pod of {chip.name}")
    return _pods(shape, chip, count, text)


def _compact(chips: int, axes: int) -> tuple[int, ...]:
    """Return the most compact shape of a slice: 16x16 for 256 chips and two axes, 4x4x8 for 128 chips and three."""
    if axes == 1:
        return (chips,)
    longest = int(chips ** (1 / axes) + 1e-9)
    shapes = [(side, *_compact(chips // side, axes - 1)) for side in range(1, longest + 1) if chips % side == 0]
    return min(shapes, key=lambda shape: sorted(shape, reverse=True))


def shape_missing(chip: Chip, text: str) -> str:
    return f"cluster {quoted(text)}: a slice of {chip.name} needs its shape, such as {_example(chip)}"


def _example(chip: Chip) -> str:
    """Return a slice of this chip as text: its whole pod, or 8 chips along each axis."""
    axes = chip.link.axes if chip.link else 3
    return f"{chip.key}:{'x'.join(map(str, chip.torus.pod if chip.torus and chip.torus.pod else (8,) * axes))}"


def _whole_pod(chip: Chip, text: str) -> tuple[int, ...]:
    """Return the shape of the chip's largest pod."""
    if chip.torus is None or not chip.torus.pod:
        raise UserError(
            f"cluster {quoted(text)}: the pod shape of {chip.name} is not in the catalogue; give one, such as {_example(chip)}"
        )
    return chip.torus.pod


def _check_torus(shape: tuple[int, ...], chip: Chip, text: str) -> None:
    axes = chip.link.axes if chip.link else 3
    if not shape or len(shape) > axes or not all(shape):
        raise UserError(f"cluster {quoted(text)}: {chip.name} is a torus of {axes} axes, such as {_example(chip)}")
    largest = chip.torus.pod if chip.torus else ()
    sides = zip(sorted(shape, reverse=True), sorted(largest, reverse=True), strict=False)
    if largest and any(side > most for side, most in sides):
        raise UserError(f"cluster {quoted(text)}: does not fit in the largest pod of {chip.name}, {'x'.join(map(str, largest))}")


def _pods(shape: tuple[int, ...], chip: Chip, pods: int, name: str) -> Cluster:
    """Build pods of this shape. The network of a pod is the sum of its chips' shares of the data-center network."""
    count = math.prod(shape)
    network = chip.network and replace(chip.network, bandwidth=chip.network.bandwidth * count)
    return Cluster(name.strip(), ((pods, Node(((count, chip),), chip.link)),), network=network, torus=shape)
