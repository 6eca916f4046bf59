"""models: a config.json or GGUF file -> a Model of Ops, with exact counts of parameters, FLOPs and bytes.

    find.py          a name (preset, HF id, path, Ollama tag, file name) -> Model
    ollama.py        'llama3.3:70b-instruct-q4_K_M' -> the preset and weight format that fit; names.py  'unsloth/GLM-4.6-GGUF'
    model.py         Model, build(); op.py  Op; config.py  checked access to the keys of a config.json
    quantization.py  quantization_config -> the format that a checkpoint is published in
    families/        config -> Body, for most types from a file of data; architecture.py  how llama.cpp stores a kind of model
    guess.py         the last resort: an unknown type, counted from its tensors; safetensors.py  headers of safetensors files
    count.py         all counts of a model as plain data
    tensors.py       the tensors that a model is stored as; formats.py  their bytes in each weight format
    modules.py       the linear layers by their names in transformers, for adapters
    gguf/            GGUF files: reading headers, llama.cpp's choice of types, random weights; make_gguf.py writes files
A new model is one file, data/models/NAME.json; a new type is one file, data/architectures/TYPE.toml.
numpy is loaded only to write GGUF files.
"""
