"""plan/serve: lookup.py finds engine and weights, search.py computes memory and speed of every layout, choice.py converts one to SI
figures, plan.py holds the best, explain.py says why it won, vary.py answers at many points. No numpy: it starts fast."""
