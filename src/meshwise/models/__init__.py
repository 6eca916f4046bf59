"""models: a config.json or GGUF file -> a Model of Ops, with exact counts of parameters, FLOPs and bytes.

    find.py          a name (preset, HF id, path, Ollama tag) -> Model
    ollama.py        'llama3.3:70b-instruct-q4_K_M' -> the preset and weight format that fit
    model.py         Model, build(); op.py  Op; config.py  checked access to the keys of a config.json
    families/        one file per kind of model: config -> Body; architecture.py  how llama.cpp stores a kind of model
    count.py         all counts of a model as plain data
    tensors.py       the tensors that a model is stored as; formats.py  their bytes in each weight format
    gguf/            GGUF files: reading headers, llama.cpp's choice of types, random weights; make_gguf.py writes files
A new model is one file, data/models/NAME.json; a new family is one file in families/ and its entry point.
Imports catalogue (files), units, errors. Imported by cost and every package above. numpy is loaded only to write GGUF files.
"""
