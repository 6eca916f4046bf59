"""train: training programs, one file each, with `PROGRAM` (see export.program); limits.py and adapters.py have what several share."""
