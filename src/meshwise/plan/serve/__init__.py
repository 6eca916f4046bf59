"""plan/serve: lookup.py finds engine and weights, search.py weighs and times every layout, choice.py gives one its units,
plan.py holds the best, explain.py says why, vary.py asks at many points. No numpy: a serving plan starts fast."""
