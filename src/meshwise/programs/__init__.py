"""export: a plan as the files or commands of another program, and such files as facts and a verdict.

    facts.py         Facts: what a launch file can say, in meshwise's own words, each with its origin
    source.py        Source, Span, Word, Setting: what a file says in its program's words, and where
    kinds.py         kinds of values: how a key's value becomes the value of a fact, and back
    program.py       Program, Launcher: one table of keys for both directions; found by entry points
    setup.py         the facts of a plan
    forms.py         settings as YAML, TOML, JSON and words of a shell
    write.py         export: a plan's files, or the nearest layout that a program can say
    ask.py           ExportAsk
    train/ serve/    programs, one file each       launch/  launchers, one file each
    read/            files -> facts                check/   facts -> verdict and changes
    engines.py       commands(question, layout): the shell lines of the planned engine, and of others that can run the same layout
    llamacpp.py      llama-server, and ggml-rpc-server on other hosts
    ollama.py        ollama serve with a Modelfile
    transformers.py  meshwise bench, since transformers has no server
    vllm.py          vllm serve, with Ray over several hosts

Each engine is one file with `lines(question, layout) -> list[str]`, registered in pyproject.toml under the entry-point group
`meshwise.programs` by the engine's name; another package adds an engine in the same way. A file whose engine can run layouts of another
engine also has `RUNS_LAYOUTS_OF` and `can(question, layout)`.
Imports plan, cost, models, catalogue. Imported by run, api. No processes.
"""
