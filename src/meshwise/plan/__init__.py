"""plan: a question -> its best answers, why they are best, and what would change them. No printing, no processes.

    fields.py    Ask, asked(): each field of a question defines once how it is parsed, printed, described and grouped
    ask.py       TrainAsk, ShapeAsk, ServeAsk: the question in the words of the command line
    rl_fields.py RolloutFields: what a question about generated answers states beside those of training
    plan.py      Plan: ask + choices + digests of the data; rows, data frame, JSON both ways
    train/       lookup -> rules -> search -> choice -> plan, over struct-of-arrays Layouts
    serve/       lookup -> search -> choice -> plan, over ServeLayouts, memory exact to the byte
    pick/        which open model to run on a machine, by published scores
    rl/          training on answers that the model generates: roles, phases, the split of devices
    shapes/      the shape of a model searched together with its layout
    vary.py      one question at many points; axes.py what can vary; cheapest.py the cheapest chip and node count
    diff.py      how two saved plans differ
    energy.py    what power costs in dollars and carbon
    budget.py    arithmetic without a search; roofline.py verdicts
One import goes up: a plan asks ui.views.notebook, by name, to draw it when a notebook shows it.
"""
