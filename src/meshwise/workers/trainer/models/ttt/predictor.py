"""The choice between the two predictors of TTT."""

from meshwise.workers.trainer.models.base import Predictor
from meshwise.workers.trainer.models.families.ttt import learner_of
from meshwise.workers.trainer.models.ttt.decode import Decoding
from meshwise.workers.trainer.models.ttt.model import TTTDecoder


def predictor(model: TTTDecoder, batch: int) -> Predictor:
    """Decode with the kernels if they support this model on its device, else with plain PyTorch."""
    plain = Decoding(model, batch)
    if learner_of(model.config)[0] == "linear" and plain.layers[0].seq_modeling_block.fast:
        from meshwise.workers.trainer.models.ttt.fast_decode import FastDecoding

        return FastDecoding(model, batch)
    return plain
