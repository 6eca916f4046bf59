"""The ggml type that llama.cpp's quantiser chooses for each tensor, for a file type such as Q4_K_M.

The rules are those of llama_tensor_get_type in llama.cpp's src/llama-quant.cpp (2024 and 2025), written from knowledge of it and
checked against the sizes stated by llama.cpp's own tables and by published files.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from meshwise.models.quantization import FILE_TYPES
from meshwise.models.tensors import Slot

BLOCKS = {
    "F32": (1, 4), "F16": (1, 2), "BF16": (1, 2), "Q4_0": (32, 18), "Q4_1": (32, 20), "Q5_0": (32, 22), "Q5_1": (32, 24),
    "Q8_0": (32, 34), "Q2_K": (256, 84), "Q3_K": (256, 110), "Q4_K": (256, 144), "Q5_K": (256, 176), "Q6_K": (256, 210),
    "IQ1_S": (256, 50), "IQ1_M": (256, 56), "IQ2_XXS": (256, 66), "IQ2_XS": (256, 74), "IQ2_S": (256, 82),
    "IQ3_XXS": (256, 98), "IQ3_S": (256, 110), "IQ4_NL": (32, 18), "IQ4_XS": (256, 136), "MXFP4": (32, 17),
    "TQ1_0": (256, 54), "TQ2_0": (256, 66),
}  # fmt: skip
"""Elements and bytes of a block: the gguf package's GGML_QUANT_SIZES, copied because importing that package takes 0.2 s."""

LOWEST_BIT_FILE_TYPES = frozenset({"IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M"})
"""File types with separate rules: nearly everything has two bits or fewer, and the most important tensors get more."""
TWO_AND_A_HALF_BIT_FILE_TYPES = frozenset({"IQ2_S", "IQ2_M"})
FLOATS = frozenset({"F32", "F16", "BF16"})

TYPE_FOR_ODD_ROWS = {
    "Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0", "TQ1_0": "Q4_0", "TQ2_0": "Q4_0",
}  # fmt: skip
"""Types for rows whose length is not a multiple of 256, by the type chosen first; IQ4_NL for types not listed."""

UNQUANTISED_TENSORS = ("_norm.weight", "ffn_gate_inp.weight", "position_embd.weight", "ssm_conv1d.weight")
"""Two-dimensional tensors that the converter writes in F32 and the quantiser does not change."""

SEVENTY = frozenset({"llama", "qwen2"})
"""Architectures in which llama.cpp takes a model with 80 layers and shared key heads for a 70B."""


def size_of(kind: str, elements: int) -> int:
    """Return the bytes of a number of elements of a ggml type, in whole blocks."""
    block, size = BLOCKS[kind]
    return elements // block * size


def more_bits(i: int, n: int) -> bool:
    """Return whether a layer gets more bits: the first and the last eighth of the layers, and every third in between."""
    return i < n // 8 or i >= 7 * n // 8 or (i - n // 8) % 3 == 2


@dataclass
class Chooser:
    """llama.cpp's choice of types, one tensor after another in layer order; some rules depend on how many of a kind came before."""

    file_type: str
    architecture: str
    layers: int
    heads: int
    kv_heads: int
    experts: int
    imatrix: bool = False
    """An importance matrix was used: IQ3_XXS, IQ4_NL, IQ4_XS, Q4_0 and Q5_0 then choose other types for some ffn_down tensors."""
    keeps_experts: bool = False  # experts published in MXFP4 (gpt-oss) keep those blocks in every file type
    tied: bool = False
    values: int = 0  # number of tensors with a value projection, including fused ones
    seen: dict[str, int] = field(default_factory=dict[str, int])

    def types(self, slots: Sequence[Slot]) -> list[str]:
        """Return the type of each tensor, in the order in which they are given."""
        self.tied = not any(slot.name == "output.weight" and slot.stored for slot in slots)
        self.values = sum(slot.name.endswith(("attn_v.weight", "attn_qkv.weight", "attn_kv_b.weight")) for slot in slots)
        return [self.type_of(slot) for slot in slots]

    def type_of(self, slot: Slot) -> str:
        """Return the type of the next tensor."""
        base = FILE_TYPES[self.file_type]
        flat = slot.rows == 1 and slot.copies == 1
        if flat or not slot.name.endswith(".weight") or slot.name.endswith(UNQUANTISED_TENSORS):
            return "F32"
        if base in FLOATS or (self.keeps_experts and slot.copies > 1):
            return "MXFP4" if self.keeps_experts and slot.copies > 1 else base
        chosen = self._chosen(slot, base)
        if slot.columns % BLOCKS[chosen][0]:
            chosen = TYPE_FOR_ODD_ROWS.get(chosen, "IQ4_NL")
        return "F16" if slot.columns % BLOCKS[chosen][0] else chosen

    def _chosen(self, slot: Slot, base: str) -> str:
        name = slot.name.rpartition("blk.")[2].partition(".")[2] if slot.name.startswith("blk.") else slot.name
        if name == "output.weight" or (self.tied and name == "token_embd.weight"):
            return self._output(slot, base)
        if self.file_type == "MXFP4_MOE":
            return "MXFP4" if slot.copies > 1 else "Q8_0"
        if name == "token_embd.weight":
            return self._embedding(base)
        if self.file_type in LOWEST_BIT_FILE_TYPES:
            return self._lowest(name, base)
        if name == "attn_v.weight":
            return self._value(base)
        if name in ("attn_q.weight", "attn_k.weight"):
            return self._query_or_key(name, base)
        if name.startswith("ffn_down"):
            return self._down(self._layer("ffn_down", slot), base)
        if name == "attn_output.weight":
            return self._attention_output(base)
        if name == "attn_qkv.weight":
            lifted = {"Q3_K_M": "Q4_K", "Q3_K_L": "Q4_K", "IQ3_M": "Q4_K", "Q4_K_M": "Q5_K", "Q5_K_M": "Q6_K"}
            return lifted.get(self.file_type, base)
        if name.startswith(("ffn_gate", "ffn_up")):
            i = self._layer(name[:7], slot)
            between = self.layers // 8 <= i < 7 * self.layers // 8
            return "IQ3_XXS" if self.file_type == "IQ3_XS" and between else base
        return base

    def _count(self, kind: str) -> int:
        """Count a tensor of a kind, and return how many came before it."""
        self.seen[kind] = self.seen.get(kind, 0) + 1
        return self.seen[kind] - 1

    def _layer(self, kind: str, slot: Slot) -> int:
        """Return the layer as the rules see it: from the name for a mixture of experts, else the number of such tensors before."""
        counted = self._count(kind)
        return slot.layer if self.experts > 1 else counted

    @property
    def grouped(self) -> bool:
        """Whether four or more query heads share a key head, so that the key and value matrices are small."""
        return self.heads >= 4 * self.kv_heads

    def _output(self, slot: Slot, base: str) -> str:
        if self.file_type == "MXFP4_MOE" or self.architecture == "falcon" or slot.columns % BLOCKS[base][0]:
            return "Q8_0"
        if self.file_type in LOWEST_BIT_FILE_TYPES or self.file_type == "IQ3_XXS":
            return "Q5_K"
        return base if base == "Q8_0" else "Q6_K"

    def _embedding(self, base: str) -> str:
        if self.file_type in TWO_AND_A_HALF_BIT_FILE_TYPES or self.file_type == "IQ3_XXS":
            return "IQ3_S"
        if self.file_type in LOWEST_BIT_FILE_TYPES:
            return "Q2_K"
        return "Q4_K" if base in ("TQ1_0", "TQ2_0") else base

    def _lowest(self, name: str, base: str) -> str:
        lifted = "IQ3_S" if self.file_type in TWO_AND_A_HALF_BIT_FILE_TYPES else "Q2_K"
        if name == "attn_v.weight":
            return "Q4_K" if self.grouped or self.experts >= 4 else lifted
        if name == "attn_k.weight" and self.experts == 8:
            return "Q4_K"
        if name.startswith("ffn_down"):
            return lifted if self._count("ffn_down") < self.layers // 8 else base
        if name == "attn_output.weight":
            if self.experts == 8:
                return "Q5_K"
            return {"IQ1_S": "IQ2_XXS", "IQ1_M": "IQ2_XXS", "IQ2_S": "IQ3_S", "IQ2_M": "IQ3_S"}.get(self.file_type, base)
        return base

    def _value(self, base: str) -> str:
        i, kind = self._count("attn_v"), self.file_type
        chosen = base
        if kind == "Q2_K":
            chosen = "Q4_K" if self.grouped else "Q3_K"
        elif kind in ("Q2_K_S", "IQ3_XS", "IQ3_S") and self.grouped:
            chosen = "Q4_K"
        elif kind == "IQ3_XXS":
            chosen = "Q4_K" if self.grouped else "IQ3_XXS" if self.imatrix else "IQ3_S"
        elif kind == "IQ3_M":
            chosen = "Q4_K"
        elif kind == "Q3_K_M":
            chosen = "Q5_K" if i < 2 else "Q4_K"
        elif kind == "Q3_K_L" or (kind in ("IQ4_NL", "IQ4_XS") and self.grouped) or (kind == "Q4_K_S" and i < 4):
            chosen = "Q5_K"
        elif kind in ("Q4_K_M", "Q5_K_M") and more_bits(i, self.values):
            chosen = "Q6_K"
        if self.experts == 8:
            return "Q8_0"
        # A 70B has eight query heads per key head: a better type for these small matrices costs almost nothing.
        seventy = self.architecture in SEVENTY and self.layers == 80 and self.heads != self.kv_heads
        return "Q5_K" if seventy and chosen in ("Q3_K", "Q4_K") else chosen

    def _query_or_key(self, name: str, base: str) -> str:
        if name == "attn_k.weight" and self.experts == 8:
            return "Q8_0"
        return {"IQ3_XS": "IQ3_XXS", "IQ3_XXS": "IQ2_S"}.get(self.file_type, base)

    def _down(self, i: int, base: str) -> str:
        kind, falcon, n = self.file_type, self.architecture == "falcon", self.layers
        first = i < n // 8
        match kind:
            case "Q2_K":
                return "Q3_K"
            case "Q2_K_S":
                return "Q4_K" if first else base
            case "IQ3_XXS" if not self.imatrix:
                return "Q4_K" if first else "Q3_K"
            case "Q3_K_M":
                return "Q5_K" if i < n // 16 else "Q4_K" if not falcon or more_bits(i, n) else base
            case "IQ3_M":
                return "Q4_K" if first or (self.experts == 8 and more_bits(i, n)) else base
            case "Q3_K_L":
                return "Q4_K" if falcon else "Q5_K"
            case "Q4_K_M" if falcon:
                return "Q6_K" if i < n // 16 else "Q5_K" if more_bits(i, n) else base
            case "Q4_K_M" | "Q5_K_M":
                return "Q6_K" if more_bits(i, n) else base
            case "IQ4_NL" | "IQ4_XS" if not self.imatrix:
                return "Q5_K" if first else base
            case "Q4_K_S":
                return "Q5_K" if first and not falcon else base
            case "Q4_0" | "Q5_0" if self.imatrix:
                return f"{base[:3]}1" if first else base
            case _:
                return base

    def _attention_output(self, base: str) -> str:
        kind = self.file_type
        if self.architecture == "falcon":
            return "Q4_K" if kind == "Q3_K_L" else base
        if self.experts == 8:
            lifted = ("Q2_K", "IQ3_XXS", "IQ3_XS", "IQ3_S", "IQ3_M", "Q3_K_S", "Q3_K_M", "IQ4_NL", "IQ4_XS", "Q4_K_S", "Q4_K_M")
            return "Q5_K" if kind in lifted else base
        return {"Q2_K": "Q3_K", "IQ3_XXS": "IQ3_S", "Q3_K_M": "Q4_K", "Q3_K_L": "Q5_K", "IQ3_M": "Q4_K"}.get(kind, base)
