"""plan/train: rules.py drops layouts, search.py evaluates the rest, choice.py gives one its units, plan.py holds the best,
explain.py says why, vary.py asks at many points, timeline.py plays a step out."""
