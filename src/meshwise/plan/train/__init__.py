"""plan/train: how to train a model on a cluster.

lookup.py    TrainAsk -> Question: cluster, model, framework, calibration; dataset.py lengths of rows of `--data`
recipes.py   what a program does in a release, as a plan assumes it, and what another recipe would change
support.py   tasks, chips and pairs that a program does not support
rank.py      expected seconds: chance of not fitting, distance from measured layouts; evidence.py the measured runs near a plan
rules.py     which layouts can run; floors.py bounds that spare the evaluation of slow ones; search.py evaluates the rest
energy.py    power of a step, energy of a training
money.py     days, dollars and energy with intervals, a usual team, renting against buying
choice.py    Choice: one layout in SI figures; plan.py TrainPlan: the best ones
compared.py  ways to use several devices, and programs, side by side
fallback.py  other frameworks, until one fits; remedies.py what would fit
batches.py   near batches that divide evenly; believe.py what the figures rest on
explain.py   why the best one won; vary.py one question at many points
mesh.py      the ranks of a layout; timeline.py one step, simulated
finetune.py  what a fine-tuning trains and fits; own_run.py predicts a run of our own trainer
"""
