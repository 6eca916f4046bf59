"""audit.logs: files that programs and people write about runs -> Runs, Claims, and a count of the lines that were skipped.

    detect.py       recognize the format of a file and read it; formats/ one module per format
    run.py          Run, Claim, Reading: the result; Sample: a median in bounded memory
    lines.py        numbered lines of a file of any length; series.py collects the steps of a log into runs
    numbers.py      numbers with units as people write them; columns.py names of fields; arguments.py printed arguments
    table.py        rows of a table as runs; document.py facts of a page outside its tables; prose.py claims in sentences
Imports catalogue (plugins), units and errors. Imported by audit. Reads files, prints nothing.
"""
