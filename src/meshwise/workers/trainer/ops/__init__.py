"""trainer.ops: the operations that models are built from.

attention.py          softmax attention on this rank's heads and part of the sequence, with windows, soft caps and ALiBi
wide_attention.py     wide heads with soft caps; wide_kernels.py: its Triton kernels
recompute.py          activation checkpointing
loss.py               cross-entropy that never holds all logits
softmax.py            its Triton kernel
fused_projections.py  several projections of one input as one product, with a Triton kernel for gated feed-forwards
adapted.py            products of frozen weights with low-rank adapters
nf4.py                weights in 4 bits; nf4_kernel.py: the Triton kernel that turns them into 16 bits
fp8.py                products of 8-bit numbers
fp8_casts.py          Triton kernels that cast to 8 bits, and find the scales
fused_heads.py        Triton kernels that split, norm and rotate queries, keys and values
experts.py            rows grouped by expert, multiplied without dropping a token
expert_kernels.py     Triton kernels between the grouped products of experts
grouped_products.py   rows times the matrices of their experts and the gradients of these, Triton kernels
routing_kernels.py    Triton kernels that choose experts, count the choices and arrange them
shared_memory.py      whether a GPU holds the tiles of the largest kernels
exchange.py           expert parallelism: rows travel to the ranks of their experts and back
squares.py            the sum of squares of all gradients, a Triton kernel
adamw.py              AdamW on 16-bit weights that lose no precision, a Triton kernel
"""
