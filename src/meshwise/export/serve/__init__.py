"""serve: serving programs, one file each, with `PROGRAM` (see export.program)."""
