"""plan: a question -> its best answers, why they are best, and what would change them.

    fields.py   Ask, asked(): each field of a question defines once how it is parsed, printed, described and grouped
    ask.py      TrainAsk, ShapeAsk, ServeAsk: the question in the words of the command line; question() looks everything up
    plan.py     Plan: ask + choices + digests of the data; rows, data frame, JSON both ways
    train/      rules -> search -> choice -> plan -> explain, over struct-of-arrays Layouts; vary, timeline
    serve/      lookup -> search -> choice -> plan -> explain, over ServeLayouts, memory exact to the byte; vary
    rl/         training on answers that the model generates: roles, phases, the split of devices
    shapes/     the shape of a model searched together with its layout
    vary.py     one question at many points; axes.py what can vary; cheapest.py the cheapest chip and node count
    budget.py   arithmetic without a search; roofline.py verdicts
Imports cost, models, catalogue; workers.trainer.settings in train/own_run.py alone. Imported by calibrate, export, audit, run, api.
No printing, no processes. One import goes up: a plan asks ui.views.notebook to draw it, when a notebook shows it.
"""
