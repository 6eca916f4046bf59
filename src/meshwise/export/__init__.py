"""export: a plan as the files or commands of another program.

    engines.py       commands(question, layout): the shell lines of the planned engine, and of others that can run the same layout
    llamacpp.py      llama-server, and ggml-rpc-server on other hosts
    ollama.py        ollama serve with a Modelfile
    transformers.py  meshwise bench, since transformers has no server
    vllm.py          vllm serve, with Ray over several hosts

Each engine is one file with `lines(question, layout) -> list[str]`, registered in pyproject.toml under the entry-point group
`meshwise.export` by the engine's name; another package adds an engine in the same way. A file whose engine can run layouts of another
engine also has `RUNS_LAYOUTS_OF` and `can(question, layout)`.
Imports cost, models, catalogue. Imported by run, api. No processes.
"""
