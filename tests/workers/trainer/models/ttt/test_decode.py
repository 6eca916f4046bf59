"""A TTT model that reads a token at a time predicts what it predicts when it reads all at once; generation works for every family."""

from typing import Any

import pytest
import torch

from meshwise.workers.trainer.contract.models.registry import families
from meshwise.workers.trainer.generate import choose, generate, loss_of, predictor_of
from meshwise.workers.trainer.models.base import Span, build

TINY: dict[str, Any] = {
    "model_type": "ttt", "ttt_layer_type": "linear", "vocab_size": 256, "hidden_size": 32, "intermediate_size": 48,
    "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 4, "mini_batch_size": 4, "tie_word_embeddings": True,
}  # fmt: skip


def random_model(**changed: Any) -> Any:
    torch.manual_seed(0)
    model = build(TINY | changed, Span(0, 2, 2))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model.requires_grad_(False)


@pytest.mark.parametrize("kind", ["linear", "mlp"])
@pytest.mark.parametrize("prompt", [1, 3, 4, 9])
def test_token_by_token_gives_the_logits_of_reading_all_at_once(kind: str, prompt: int) -> None:
    model = random_model(ttt_layer_type=kind)
    tokens = torch.randint(0, 256, (2, 15))
    whole = model(tokens)
    predictor = predictor_of(model, batch=2)
    torch.testing.assert_close(predictor.prompt(tokens[:, :prompt]), whole[:, prompt - 1], rtol=1e-4, atol=1e-4)
    for i in range(prompt, 15):
        torch.testing.assert_close(predictor.step(tokens[:, i]), whole[:, i], rtol=1e-4, atol=1e-4)


def test_a_new_prompt_forgets_the_last_text() -> None:
    model = random_model()
    tokens = torch.randint(0, 256, (1, 7))
    predictor = predictor_of(model)
    first = predictor.prompt(tokens)
    predictor.step(tokens[:, 0])
    torch.testing.assert_close(predictor.prompt(tokens), first)


@pytest.mark.parametrize("kind", families())
def test_greedy_text_is_what_the_whole_model_finds_likeliest_each_time(kind: str) -> None:
    model = random_model(model_type=kind)
    tokens = torch.randint(0, 256, (1, 6))
    generated = generate(predictor_of(model), tokens, 8)
    for _ in range(8):
        tokens = torch.cat((tokens, model(tokens)[:, -1].argmax(-1, keepdim=True)), 1)
    assert generated.tolist() == tokens[:, 6:].tolist()


def test_tokens_are_drawn_by_their_probability() -> None:
    torch.manual_seed(0)
    logits = torch.tensor([0.7, 0.2, 0.1]).log().expand(20_000, 3)
    drawn = torch.bincount(choose(logits, 1.0), minlength=3) / 20_000
    # three standard deviations of a share p are 3 sqrt(p (1 - p) / 20,000) <= 0.0097
    torch.testing.assert_close(drawn, torch.tensor([0.7, 0.2, 0.1]), rtol=0, atol=0.0097)


def test_the_loss_of_a_text_is_the_mean_over_its_pieces() -> None:
    model = random_model()
    tokens = torch.randint(0, 256, (11,))
    loss, count = loss_of(model, tokens, 6)
    pieces = [torch.nn.functional.cross_entropy(model(part[None, :-1])[0], part[1:]) for part in (tokens[:6], tokens[6:])]
    assert count == 9
    assert abs(loss - float(5 * pieces[0] + 4 * pieces[1]) / 9) < 1e-5
