"""audit.profile: the folder of a `meshwise run`, its step split into parts: predicted against measured.

trace.py    a torch profiler trace -> seconds by part
parts.py    predicted and measured seconds of each part, with step time and memory
"""
