"""audit.profile: the folder of a `meshwise run`, its step split into parts: predicted against measured.

parts.py    predicted and measured seconds of each part, with step time and memory
"""
