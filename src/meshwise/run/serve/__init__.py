"""serve: a serving plan as processes, and how fast they are.

ask.py           ServeRun: how to start an engine, in the words of the command line
deployment.py    Deployment: a serving layout that can be started, and predicted at any setting
programs.py      a Deployment -> the command of every process; refuses a missing program or file before anything starts
process.py       start programs, wait until they answer, report why one ended, leave none behind
session.py       Serving: an engine that is up, as `run` starts it; its dry run
bench.py         measure an endpoint or an engine started for it, beside the prediction
traced.py        a trace at an endpoint beside the same requests in the simulation
report.py        a measurement as data: comparison with another, rows of a table, causes of a gap
memory.py        planned bytes per device against those of llama.cpp, which allocations.py reads from its logs
llama_bench.py, transformers.py, xllamacpp.py   one program each: llama-bench, the decoder worker, llama.cpp inside Python
"""
