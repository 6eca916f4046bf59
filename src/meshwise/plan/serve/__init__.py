"""plan/serve: lookup.py finds engine and weights, search.py computes memory and speed of every layout (option.py), pools.py combines
layouts for prompts with layouts for outputs, choice.py converts one to SI figures, plan.py holds the best, explain.py says why it won,
vary.py answers at many points, capacity.py finds the most load within targets, cheapest.py the cheapest devices, front.py the Pareto
front. No numpy: it starts fast."""
