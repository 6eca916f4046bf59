"""gguf: GGUF files as llama.cpp reads and writes them.

    header.py     a file's header -> Model and its tensors; the weights are not read
    quantiser.py  the ggml type that llama.cpp chooses for each tensor, by file type (Q4_K_M, ...)
    random.py     random weights in any ggml type, for files that measure speed
The names of architectures and tensors are not here: they are data (data/gguf/), or a family lists its own.
"""
