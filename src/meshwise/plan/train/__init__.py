"""plan/train: rules.py drops layouts, search.py evaluates the rest, choice.py converts one to SI figures, plan.py holds the best,
explain.py says why it won, vary.py answers at many points, timeline.py simulates one step, mesh.py numbers its ranks, own_run.py predicts
a run of our own trainer, dataset.py reads lengths of rows, finetune.py has what fine-tuning trains and fits, fallback.py tries
frameworks until one fits, remedies.py says what would fit."""
