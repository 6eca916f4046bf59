"""serve: serving programs, one file each.

    setup.py     a serving plan, or a question with a layout, as facts
    declared.py  what programs have in common; lengths.py lengths as engines write them: 4k, 4K, 32768
    hosts.py     several hosts; pools.py servers for prompts and for outputs, and the router between them

Each has `PROGRAM`: `export --to` writes it, `check` reads it. Those that `meshwise serve` plans for also have
`lines(question, layout) -> list[str]`, made from the same table of keys; one that can run layouts of another engine also has
`RUNS_LAYOUTS_OF` and `can(question, layout)`. transformers.py has no server and no PROGRAM.
"""
