"""plan/serve: how to serve a model at a load. No numpy: it starts fast.

lookup.py    ServeAsk -> ServeQuestion: engine, weights, load
search.py    memory and speed of every layout, the best first; pools.py layouts with pools for prompts and for outputs
energy.py    power of a layout at its load, energy of its tokens
option.py    Option: a layout at a load; choice.py ServeChoice: an option in SI figures
plan.py      ServePlan: the best choices and their commands; refusal.py why there is none
explain.py   why the best one won; believe.py what its figures rest on; measured.py whether a measured speed is normal
vary.py      one question at many points; capacity.py the most load within targets
cheapest.py  the fewest and cheapest devices; front.py the Pareto front
words.py     a load, its lengths and targets in words
"""
