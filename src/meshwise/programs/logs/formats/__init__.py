"""programs.logs.formats: one file per log format, found in this folder; another package registers its own under `meshwise.logs`.

A module has `name`, `order`, `matches(head)` and `read(lines) -> Reading` (see ../detect.py), and the argument names that only its
program uses.
"""
