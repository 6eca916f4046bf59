"""programs: the words of other programs, both ways: a plan as their files and commands, and their files and logs as facts. No processes.

source.py    Source, Span, Word, Setting: what a file says in its program's words, and where
kinds.py     kinds of values: how a key's value becomes the value of a fact, and back
program.py   Program, Launcher: one table of keys for both directions; found in train/, serve/, rl/ and launch/
table.py     tables of keys from data/programs/tables
forms.py     settings as YAML, TOML, JSON and words of a shell
setup.py     the facts of a plan; write.py a plan's files, or the nearest layout that a program can say; ask.py ExportAsk
writable.py  a plan with the layouts that a program can write
engines.py   the shell lines of the planned engine, and of others that can run the same layout; start.py with published weights
train/ serve/ rl/   programs, one file each   launch/  launchers, one file each
read/        files -> facts; bash/ follows their scripts
logs/        what programs print
"""
