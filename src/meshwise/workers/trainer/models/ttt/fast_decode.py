"""TTT-Linear one token at a time by kernels: five launches per layer, weights in half precision, activations in float32."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from typing import Any

import torch
from torch import Tensor

from meshwise.workers.trainer.models.ttt.decode import Decoding, Memory
from meshwise.workers.trainer.models.ttt.kernels import linear
from meshwise.workers.trainer.models.ttt.kernels.product import multiply
from meshwise.workers.trainer.models.ttt.linear import LinearLearner
from meshwise.workers.trainer.models.ttt.model import TTTDecoder


class FastDecoding(Decoding):
    """A predictor whose steps run in kernels, with weights of `dtype`."""

    def __init__(self, model: TTTDecoder, batch: int = 1, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__(model, batch)
        self.dtype = dtype
        with torch.no_grad():
            self.packed = [block.seq_modeling_block.packed_weight().to(dtype) for block in self.layers]
            self.others = [[weight.detach().to(dtype) for weight in self._weights(block)] for block in self.layers]
            self.head_weight = self.head.weight.detach().to(dtype)

    def _weights(self, block: Any) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        mlp = block.mlp
        return block.seq_modeling_block.o_proj.weight, mlp.gate_proj.weight, mlp.up_proj.weight, mlp.down_proj.weight

    def prompt(self, tokens: Tensor) -> Tensor:
        with torch.autocast(tokens.device.type, self.dtype, enabled=self.dtype != torch.float32):
            return super().prompt(tokens)

    @torch.no_grad()
    def step(self, tokens: Tensor) -> Tensor:
        x = self.trunk.embed_tokens(tokens).float()
        for i, (block, memory) in enumerate(zip(self.layers, self.memories, strict=True)):
            x = self._fast_block(i, block, memory, x)
        self.position += 1
        return multiply(x, self.head_weight, norm=self.trunk.norm)

    def _fast_block(self, i: int, block: Any, memory: Memory, x: Tensor) -> Tensor:
        layer: LinearLearner = block.seq_modeling_block
        out, gate, up, down = self.others[i]
        packed = multiply(x, self.packed[i], norm=block.seq_norm)
        norm, rates = (layer.ttt_norm_weight, layer.ttt_norm_bias), (layer.learnable_token_idx, layer.learnable_ttt_lr_bias)
        read = linear.decode(packed, self.rotation, *norm, *rates, layer.base_lr, memory.state, self.position)
        x = multiply(read, out, norm=layer.post_norm, residual=x)
        inner = multiply(x, gate, norm=block.ffn_norm, gated_by=up)
        return multiply(inner, down, residual=x)
