"""audit.profile: the folder of a `meshwise run`, its step split into parts: predicted against measured.

    trace.py    a torch profiler trace -> seconds by part
    parts.py    the planner's parts next to those of the trace, with step time and memory
Imports plan, models, workers.trainer.settings. Imported by ui.
"""
