"""read: launch files as settings and facts. Nothing is executed, and no file is read that the user did not name.

    flags.py      words of a command line -> settings
    tree.py       YAML and JSON -> settings, with the place of every value
    tables.py     TOML -> settings, with the place of every value
    shell.py      a shell or Slurm script -> the commands that it would run, by evaluating assignments, arrays, branches and heredocs
    command.py    a command -> what its launcher (srun, torchrun, deepspeed, accelerate) says, and the words of the program behind it
    files.py      files -> Reading: the program, its facts, and what is missing

Imports export.{source,facts,program}. Imported by export.check, api. No processes.
"""
