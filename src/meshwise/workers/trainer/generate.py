"""`python -m meshwise.workers.trainer.generate config.json --weights folder --read tokens.json --write answer.json`: continue a text.

With --eval it computes the loss of the tokens instead. `meshwise generate` converts between text and tokens. A recurrent model
(TTT) keeps a state of constant size; any other model rereads the whole text for each token.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
import argparse
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from meshwise.workers.trainer import weights
from meshwise.workers.trainer.contract.models.registry import family_of, sizes_of, tied_embedding
from meshwise.workers.trainer.contract.stages import Span
from meshwise.workers.trainer.models.base import Decoder, Predictor, build, recurrent_predictor
from meshwise.workers.trainer.ranks.faults import TrainingError


class StatelessPredictor:
    """Runs a model without state: each token costs a pass over all before it."""

    def __init__(self, model: Any) -> None:
        self.model, self.read = model, torch.empty(0)

    @torch.no_grad()
    def prompt(self, tokens: Tensor) -> Tensor:
        self.read = tokens
        return self.model(tokens)[:, -1].float()

    def step(self, tokens: Tensor) -> Tensor:
        return self.prompt(torch.cat((self.read, tokens[:, None]), 1))


def predictor_of(model: Any, batch: int = 1) -> Predictor:
    """Return the fastest predictor for this model on its device."""
    return recurrent_predictor(model, batch) if family_of(model.config).recurrent else StatelessPredictor(model)


def choose(logits: Tensor, temperature: float) -> Tensor:
    """Return the likeliest token, or at a temperature one sampled by its probability, as the smallest of exponential variates."""
    if not temperature:
        return logits.argmax(-1)
    chances = (logits / temperature).softmax(-1)
    return (chances / torch.empty_like(chances).exponential_()).argmax(-1)


@torch.no_grad()
def generate(predictor: Predictor, prompt: Tensor, count: int, temperature: float = 0.0) -> Tensor:
    """Return `count` tokens (batch, count) after a prompt (batch, tokens). On a GPU a stateful step is replayed as one CUDA graph."""
    token = choose(predictor.prompt(prompt), temperature)
    generated = torch.zeros(len(prompt), count, dtype=torch.long, device=prompt.device)
    generated[:, 0] = token
    at = torch.ones(1, dtype=torch.long, device=prompt.device)

    def step() -> None:
        token.copy_(choose(predictor.step(token), temperature))
        generated.index_copy_(1, at, token[:, None])
        at.add_(1)

    graphed = prompt.is_cuda and not isinstance(predictor, StatelessPredictor) and count > 4
    run = captured(step) if graphed else step
    for _ in range(count - 1 - (WARM_UP_STEPS if graphed else 0)):
        run()
    return generated


WARM_UP_STEPS = 2  # steps that run before one is captured, so that every kernel is compiled; capturing runs nothing


def captured(step: Callable[[], None]) -> Callable[[], None]:
    """Run WARM_UP_STEPS steps, then capture one as a CUDA graph; return the function that replays it."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP_STEPS):
            step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


@torch.no_grad()
def loss_of(model: Any, tokens: Tensor, seq: int) -> tuple[float, int]:
    """Return the mean cross-entropy per token, predicted from the tokens before it in its piece of `seq`, and the number of tokens."""
    total, count = 0.0, 0
    for piece in tokens.split(seq):
        if len(piece) > 1:
            logits = model(piece[None, :-1])
            total += float(F.cross_entropy(logits[0].float(), piece[1:], reduction="sum"))
            count += len(piece) - 1
    return total / max(1, count), count


def load(config: dict[str, Any], given: Path, device: torch.device) -> Any:
    """Load a whole model with weights from HF's safetensors."""
    layers = sizes_of(config).layers
    with torch.device("meta"):
        model = build(config, Span(0, layers, layers))
    model.to_empty(device=device)
    cast(Decoder, model).tie()
    weights.load([model], given, tied_embedding(config))
    return model.requires_grad_(False).eval()


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m meshwise.workers.trainer.generate")
    parser.add_argument("config", type=Path, help="config.json of a model or of a run")
    parser.add_argument("--weights", type=Path, required=True, help="HF safetensors, a file or a folder")
    parser.add_argument("--read", type=Path, required=True, help="JSON: the tokens to continue")
    parser.add_argument("--write", type=Path, required=True, help="JSON file to write the result to")
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--temperature", type=float, default=0.0, help="0 picks the likeliest token")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--eval", action="store_true", help="compute the loss of the tokens instead")
    parser.add_argument("--seq", type=int, default=2048, help="with --eval: tokens read in one piece")
    given = parser.parse_args()
    config = json.loads(given.config.read_text(encoding="utf-8"))
    device = torch.device(given.device)
    torch.manual_seed(given.seed)
    try:
        model = load(config.get("model", config), given.weights, device)
    except TrainingError as error:
        print(error, file=sys.stderr)
        sys.exit(2)
    tokens = torch.tensor(json.loads(given.read.read_text(encoding="utf-8")), device=device)
    if given.eval:
        loss, count = loss_of(model, tokens, given.seq)
        answer: dict[str, Any] = {"loss": loss, "tokens": count}
    else:
        answer = {"generated": generate(predictor_of(model), tokens[None], given.tokens, given.temperature)[0].tolist()}
    given.write.write_text(json.dumps(answer), encoding="utf-8")


if __name__ == "__main__":
    main()
