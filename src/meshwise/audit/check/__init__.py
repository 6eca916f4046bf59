"""audit.check: launch files -> what contradicts, whether it fits, how fast it is, and the best layout in the file's own words.

ask.py              CheckAsk: files, cluster, and answers to what files leave open
layout.py           facts -> a layout of the planner, or what is missing for one
contradictions.py   what cannot start as written, and what does nothing
changes.py          a better layout as changes of the file, and the patched text
train.py            the verdict on a training file
serve.py            the verdict on a serving file; served.py one layout at a load
rollout.py          the verdict on a file of a program that trains on generated answers
judge.py            `check`: reads files and judges them
difference.py       whether one layout is faster than another by more than the uncertainty of that
shape.py            the model of a file in one line
verdict.py          Verdict
"""
