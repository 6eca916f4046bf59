"""The posterior of every candidate after some runs, in closed form, and the choice of the next run.

space.py        candidates: layouts with options, their predicted time and memory, and how both depend on the coefficients
observation.py  what one run of a candidate told
residual.py     effects that the cost model does not know, over the axes of the layout
hypotheses.py   what explains the runs: an effect that a trait of a layout has on this machine, slow modes of some runs
memory.py       the probability that a candidate fits, from memory that was measured or ran out
risk.py         the probability that a candidate is broken or slow, from what it shares with others that were
posterior.py    what measured runs say about all candidates
normal.py       the normal distribution over arrays
choice.py       the next run: the one with the largest expected improvement
"""
