"""plan/train: rules.py drops layouts, search.py evaluates the rest, choice.py gives one its units, plan.py holds the best,
explain.py says why, vary.py asks at many points, timeline.py simulates one step, own_run.py predicts a run of our
own trainer."""
