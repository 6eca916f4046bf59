"""trainer.contract: what the launcher and the worker share. No torch, and nothing of the rest of the trainer: families are loaded by name.

settings.py  Settings and Layout, and the rules a layout must satisfy
stages.py    the layers of each pipeline stage; recipe.py: the learning rate
marker.py    the settings that a checkpoint records; rows.py: steps, ranks and the row of a measurement table, as JSON
models/      descriptions, tensors and the registry of families
files/       weights, samples and the embedded text
finetune/    the method, its targets, and PEFT's files
process/     how a run stops, and its locks
"""
