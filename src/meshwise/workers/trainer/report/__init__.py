"""trainer.report: the lines and files that a run writes about its steps.

lines.py     the printed line of a step, the environment
kernels.py   seconds of a step on a GPU by part, from its kernels
trackers.py  TensorBoard, Weights & Biases, trackio, Prometheus
recorder.py  prints and writes steps and measurements, with profiler traces and memory history
"""
