"""The version of meshwise, which pyproject.toml reads too."""

VERSION = "0.2.0"
