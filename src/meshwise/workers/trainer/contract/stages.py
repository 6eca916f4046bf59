"""Pipeline stages: the layers that each one holds, and the stages of each rank. No torch: a dry run reads it too."""

from dataclasses import dataclass

from meshwise.workers.trainer.contract.settings import Layout


@dataclass(frozen=True)
class Span:
    """Layers first to last - 1 of `total`."""

    first: int
    last: int
    total: int

    @property
    def starts(self) -> bool:
        return self.first == 0

    @property
    def ends(self) -> bool:
        return self.last == self.total

    @property
    def layers(self) -> range:
        return range(self.first, self.last)


def spans(layers: int, stages: int) -> list[Span]:
    """Split the layers evenly. Extra layers go to the middle stages first, since the end stages hold the embedding and the head."""
    each, over = divmod(layers, stages)
    middle_first = sorted(range(stages), key=lambda stage: abs(2 * stage - stages + 1))
    sizes = [each + (stage in middle_first[:over]) for stage in range(stages)]
    starts = [sum(sizes[:stage]) for stage in range(stages)]
    return [Span(start, start + size, layers) for start, size in zip(starts, sizes, strict=True)]


def stages_of_rank(layout: Layout, stage: int) -> list[int]:
    """Return the stages that a pipeline rank holds: every pp-th one, or for the V schedule one on the way down and one on the way up."""
    if layout.schedule == "zbv":
        return [stage, 2 * layout.pp - 1 - stage]
    return list(range(stage, layout.pp * layout.chunks, layout.pp))
