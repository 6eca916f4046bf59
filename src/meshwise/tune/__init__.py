"""Tune: the fastest layout on the user's own cluster from a few measured runs; choose, launch, read, learn, choose again.

ask         TuneAsk: the question of `meshwise tune`
start       reads the plan, and starts the loop on it
loop        the loop: waits for runs, learns from them, chooses the next, stops when more would not pay
journal     tune.jsonl of a tuning folder: every event, on disk before the next one; the state is a fold over it
subject     what is tuned, as the loop sees it: training or serving
training    layouts of a training plan as candidates: their files, their logs, the plan and calibration at the end
serving     layouts and flags of an engine as candidates, measured with `bench`
launch      starts the script of a run with the user's command, once; says when it has ended, and how
reading     a log -> step time and memory, or a failure, or why it does not count
columns     a run of another program as a row of a table of measurements
result      Tuned: the runs, the best layout with its interval, and the expected gain of further runs
space       candidates: layouts with options, their predicted time and memory, and how both depend on the coefficients
observation what one run of a candidate told
posterior   what measured runs say about all candidates, in closed form
residual    effects that the cost model does not know, over the axes of the layout
memory      the probability that a candidate fits, from memory that was measured or ran out
risk        the probability that a candidate is broken or slow, from what it shares with others that were
normal      the normal distribution over arrays
choice      the next run: the one with the largest expected improvement
replay      the same loop on a table of measured runs
groups      rows of a table that a planner chooses among
rivals      other ways to choose, for comparison: random order, a rule of thumb, the planner's order, optuna

Imports audit, run, calibrate, export, plan, cost, models, catalogue and units. Imported by api and ui.
"""
