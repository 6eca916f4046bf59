"""train: training programs, one file each, with `PROGRAM` (see export.program)."""
