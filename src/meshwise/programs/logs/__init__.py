"""programs.logs: files that programs and people write about runs -> Runs, Claims, and a count of the lines that were skipped.

detect.py     recognize the format of a file and read it; formats/ one file each
lines.py      numbered lines of a file of any length; series.py collects the steps of a log into runs
arguments.py  arguments that programs print
document.py   facts of a page outside its tables; prose.py claims in sentences
"""
