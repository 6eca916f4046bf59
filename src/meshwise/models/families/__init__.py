"""Families: how the config.json of a type becomes Ops. Every module here with `model_types` and
`read` is one; another package registers its own under the entry-point group `meshwise.families`.

    described.py         every type that has a file in data/architectures, which maps its keys onto blocks
        description.py   reads such a file with everything it is like; expression.py  its expressions, keys.py  checked keys of a config
        rows.py          constructors of Ops for its rows; assembly.py  standard blocks, and layers between embedding and head
        nested.py        configs with a language model within; stored.py  how llama.cpp stores a type (data/gguf)
    ttt.py               TTT-Linear and TTT-MLP, whose inner loop is no block that others share
    blocks.py            shared parts: attention, feed-forward, experts, assemble(); no family itself

A family is a module with
    model_types          the HF model types that it reads
    read(config)         a checked config.json -> Body
and, if llama.cpp runs its models,
    gguf                 tuple of Architecture: llama.cpp's names for them, and how its converter stores them
    tensor_names         llama.cpp's names for the weights of the family's own Ops
A new type is one TOML file; only one whose blocks rows of data cannot express needs a module.
"""
