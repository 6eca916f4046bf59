"""workers.trainer: a thin training program on PyTorch's distributed engine. Needs torch (and triton on a GPU).

__main__.py    one worker: `torchrun -m meshwise.workers.trainer settings.json`
contract/      what the launcher and the worker share: settings, rows, markers, families (no torch); the only folder that others import
loop.py        the training loop; step.py: one step; passes.py: forward and backward over micro-batches; phases.py: their seconds
parallel.py    mesh, tensor parallelism, FSDP; gradients.py: tied weights, gradient norm
optimizer.py   AdamW
balance.py     loads of experts, and the biases that even them out; evaluation.py: the validation loss
checkpoint.py  writes and resumes checkpoints; dcp_metadata.py: what they hold, as JSON; pickles are not read
weights.py     random weights, HF safetensors in and out
generate.py    continues a text; shapes.py: prints the shapes on each rank
models/ ops/ data/ ranks/ report/ finetune/
"""
