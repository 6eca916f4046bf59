"""read: launch files as settings and facts. Nothing is executed, and no file is read that the user did not name.

flags.py       words of a command line -> settings
tree.py        YAML and JSON -> settings, with the place of every value; tables.py TOML in the same way
python.py      keyword arguments of the calls of a Python script
shell.py       a shell or Slurm script -> the commands that it would run
command.py     a command -> what its launcher (srun, torchrun, deepspeed, accelerate) says, and the words of the program behind it
companions.py  what a command says together with the files that it names
images.py      what an image of a container starts by itself
pages.py       commands of a Markdown page, a systemd unit and llama-server's presets; an Ollama Modelfile
unread.py      keys that no fact comes from
files.py       files -> Reading: the program, its facts, and what is missing
"""
