"""train: a training run as processes, measured beside its prediction.

ask.py         TrainRun, GenerateAsk: the run, and text from its weights, in the words of the command line
launch.py      TrainRun -> Launch: the trainer's settings, checked before any process starts
hosts.py       the machines of a run, from flags or from Slurm, Kubernetes and torchrun; nodes/  runs on MIN:MAX of them
processes.py   start the workers, pass on their output, forward signals; secrets.py: the secret that they share
data.py        the data of a run, and finetune.py: --finetune and --adapter, both checked against the model
start.py       a run, a sweep, a job or a dry run, each imported when it is asked for; results.py: what they return
single.py      one run from its workers to its report
submit.py      the same run as a job of Slurm: its script, its log, its measured row
attempt.py     one start of the workers, from the settings to the measurements
lock.py        one run at a time in a folder; previous.py: checkpoints of an earlier run
folder.py      a run folder, read while it trains or afterwards
report/        measured beside predicted, and layouts to try next
short/         short runs over layouts, and over sequence lengths
dry_run.py     the command and the sharded shapes of a run, without torch
generate.py    text or loss from the weights that a run saved
"""
