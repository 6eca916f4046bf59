"""What kernels of vendors have in common, for training and serving alike. No numpy here: a serving plan starts without it."""

TILES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64))
"""m x n of the tiles that vendor libraries choose from."""
LARGEST_TILE = 256 * 128
FLASH_HEAD = 64.0
"""Head size at which flash attention is half as fast as it gets (H200: 374 TFLOP/s at 64, 584 at 128)."""
