"""Tune: the fastest layout on the user's own cluster from a few measured runs; choose, launch, read, learn, choose again.

ask         TuneAsk: the question of `meshwise tune`
loop        the loop: waits for runs, learns from them, chooses the next, stops when more would not pay
journal     tune.jsonl of a tuning folder: every event, on disk before the next one; the state is a fold over it
launch      starts the script of a run with the user's command, once; says when it has ended, and how
training    layouts of a training plan as candidates: their files, their logs, the plan and calibration at the end
serving     layouts and options of an engine as candidates, measured with `bench`
reading     a log -> step time and memory, or a failure, or why it does not count
result      Tuned: the runs, the best layout with its interval, and the expected gain of further runs
space       candidates: layouts with options, their predicted time and memory, and how both depend on the coefficients
posterior   what measured runs say about all candidates, in closed form
residual    effects that the cost model does not know, over the axes of the layout
choice      the next run: the one with the largest expected improvement
replay      the same loop on a table of measured runs
rivals      other ways to choose, for comparison: random order, a rule of thumb, the planner's order, optuna

Imports audit, run, calibrate, export, plan, cost, models, catalogue and units. Imported by api and ui.
"""
