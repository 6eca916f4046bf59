"""Families: one file per kind of block. Each has `model_types`, the HF names it reads, and `read(config) -> Body`.

They are found through the entry-point group `meshwise.families`; a third party's file is used the same way as these.
"""
