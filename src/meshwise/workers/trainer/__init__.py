"""workers.trainer: a thin training program on PyTorch's distributed engine. Needs torch (and triton on a GPU).

    __main__.py    one worker: `torchrun -m meshwise.workers.trainer settings.json`
    settings.py    Settings and Layout, and the rules a layout must satisfy (no torch)
    loop.py        the training loop; step.py: one step; passes.py: forward and backward over micro-batches
    stages.py      the layers of each pipeline stage (no torch)
    parallel.py    mesh, tensor parallelism, FSDP; gradients.py: tied weights, gradient norm
    optimizer.py   AdamW; recipe.py: the learning rate (no torch)
    balance.py     loads of experts, and the biases that even them out; evaluation.py: the validation loss
    checkpoint.py  writes and resumes checkpoints; marker.py: the settings that a checkpoint records (no torch)
    dcp_metadata.py  reads DCP's pickle without running code in it
    weights.py     random weights, HF safetensors in and out
    generate.py    continues a text; shapes.py: prints the shapes on each rank
    models/ ops/ data/ hf/ ranks/ report/ finetune/

Imports nothing else of meshwise. Started by run.train; the launcher imports the torch-free modules.
"""
