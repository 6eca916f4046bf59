"""launch: ways to start processes, one file each, with `LAUNCHER` (see export.program)."""
