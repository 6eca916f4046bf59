"""Facts about vendors' kernels, for training and serving. Without numpy, since serving plans start without it."""

TILES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64))
"""(m, n) of the tiles that vendor libraries choose from."""
LARGEST_TILE = 256 * 128
FLASH_HEAD = 64.0
"""Head size at which flash attention reaches half of its limit (H200: 374 TFLOP/s at 64, 584 at 128)."""
