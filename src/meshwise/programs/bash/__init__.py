"""bash: follow a shell script without running it. No processes, no files, nothing else of meshwise.

    pieces.py       Place, Piece, Value, Source: text that knows where it was written
    words.py        characters -> words: quotes, `$name`, `${...}`, `$(...)`, `$((...))`
    tree.py         the syntax tree; statements.py parses it, from a position that cursor.py keeps
    state.py        variables, functions, arguments, written files; what is left of two states after a test that cannot be decided
    expansion.py    words -> values; braces.py, patterns.py, arithmetic.py and conditions.py are the languages inside it
    automaton.py    patterns that a script states, matched in linear time; budget.py: steps and seconds that reading may take
    interpreter.py  statements -> commands that would start; flow.py: how statements end; shell.py: what they change; assignments.py
    builtins.py     simple commands; outputs.py and sed.py: what harmless ones print; inner.py: scripts inside commands
    variants.py     the forms of a command by the tests that cannot be decided
    directives.py   `#SBATCH` lines

Why an own parser: `bashlex` is GPL and stops at arithmetic and arrays; `tree-sitter-bash` (MIT) gives a tree in which expansions,
splitting, tests and places of values would still be ours to write, at the price of two binary packages. The parser is the smaller half
of the work, and bash itself is the referee of both in tests/programs/read.
"""
