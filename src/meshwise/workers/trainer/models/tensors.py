"""Names and shapes of weights as HF stores them. No torch."""

from dataclasses import dataclass

Shapes = dict[str, tuple[int, ...]]
HEAD = "lm_head.weight"


@dataclass(frozen=True)
class Tensors:
    """The weights of a model without its head; every layer has the same ones."""

    before: Shapes
    """Weights before the layers, by full name."""
    layers: str
    """Prefix of the layers: layer i holds `{layers}.{i}.{name}`."""
    layer: Shapes
    after: Shapes
    """Weights after the layers, by full name."""

    def shapes(self, layers: int) -> Shapes:
        each = {f"{self.layers}.{i}.{name}": shape for i in range(layers) for name, shape in self.layer.items()}
        return self.before | each | self.after


def linear(name: str, outputs: int, inputs: int, bias: bool = True) -> Shapes:
    return {f"{name}.weight": (outputs, inputs)} | ({f"{name}.bias": (outputs,)} if bias else {})


def norm(name: str, width: int) -> Shapes:
    """Return the shapes of a norm with gain and bias."""
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}
