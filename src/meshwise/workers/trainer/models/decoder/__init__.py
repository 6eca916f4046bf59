"""trainer.models.decoder: one transformer decoder for all families that a Description describes. Needs torch.

model.py         embedding, layers, head
attention.py     queries, keys and values, their norms and rotation
latent.py        attention out of low-rank latents (DeepSeek)
feed_forward.py  gated or plain
experts.py       a router and its experts, balanced by a loss or by a bias
norms.py         RMSNorm, RMSNorm with a gain around one, LayerNorm; norms of queries and keys under tensor parallelism
rotary.py        cosines and sines of rotary positions
sharding.py      how tensor and sequence parallelism cut them
"""
