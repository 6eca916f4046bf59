"""Tune: the fastest layout on the user's own cluster from a few measured runs; choose, launch, read, learn, choose again.

ask         TuneAsk: the question of `meshwise tune`
loop/       the loop: starts runs, reads them, learns from them, chooses the next, stops when more would not pay
space       candidates: layouts with options, their predicted time and memory, and how both depend on the coefficients
observation what one run of a candidate told
posterior   what measured runs say about all candidates, in closed form
residual    effects that the cost model does not know, over the axes of the layout
hypotheses  that a trait of a layout has an effect of its own on this machine
memory      the probability that a candidate fits, from memory that was measured or ran out
risk        the probability that a candidate is broken or slow, from what it shares with others that were
normal      the normal distribution over arrays
choice      the next run: the one with the largest expected improvement
replay      the same loop on a table of measured runs
groups      rows of a table that a planner chooses among
rivals      other ways to choose, for comparison: random order, a rule of thumb, the planner's order, optuna

Imports audit, run, calibrate, export, plan, cost, models, catalogue and units. Imported by api and ui.
"""
