"""trainer.report: the lines and files that a run writes about its steps.

    rows.py      steps, ranks and the row of a measurement table, as JSON (no torch: the launcher reads them)
    lines.py     the printed line of a step, the environment
    phases.py    seconds of a step by phase
    kernels.py   seconds of a step on a GPU by part, from its kernels
    trackers.py  TensorBoard, Weights & Biases, trackio, Prometheus
    recorder.py  prints and writes steps and measurements, with profiler traces and memory history

Imports trainer.settings and trainer.parallel. Imported by the training loop; rows.py also by run and its reports.
"""
