"""check: the facts of a launch file -> what contradicts, whether it fits, how fast it is, and the best layout in the file's own words.

    derive.py           facts that follow from others: devices, dp, batch, tokens
    model.py            the model that a file names, or whose sizes it states
    layout.py           facts -> a layout of the planner, or what is missing for one
    contradictions.py   what cannot start as written, and what does nothing
    changes.py          a better layout as changes of the file, and the patched text
    train.py            the verdict on a training file
    serve.py            the verdict on a serving file
    judge.py            `check`: reads files and judges them
    verdict.py          Verdict

Imports export.read, plan, cost, models, catalogue. Imported by api.
"""
