"""replay.engine: the discrete-event simulation. Its step times are those of cost/serve/passes.

times.py     seconds of passes, kept where they repeat      job.py       a request on its way through an engine
cache.py     cached prefixes by blocks, in tiers            copy.py      one engine: admission, chunks, decode steps, preemption
router.py    which copy gets a request                      policy.py    how many copies there should be
record.py    what was seen of every request                 clock.py     all copies in one time, with arrivals, pools and scaling
steady.py    a constant load on one copy, the referee of cost/serve/load
"""
