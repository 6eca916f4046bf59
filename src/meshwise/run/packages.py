"""Optional packages: refuse a feature whose package is not installed, with the command that installs it."""

import importlib.util
from importlib.metadata import PackageNotFoundError, requires

from meshwise.errors import UserError


def require(package: str, feature: str) -> None:
    """Refuse a feature if the package that it needs is not installed."""
    if importlib.util.find_spec(package) is None:
        name = {"torch": "PyTorch"}.get(package, package)
        raise UserError(f"{feature} needs {name}, which is not installed: {install(package)}")


def install(package: str) -> str:
    """Return the command that installs an optional package in a version that meshwise works with."""
    try:
        lines = requires("meshwise") or ()
    except PackageNotFoundError:  # a bare source tree
        lines = ()
    listed = (line.partition(";")[0].strip() for line in lines if "extra ==" in line)
    requirement = next((line for line in listed if line.startswith(package)), package)
    return f"pip install '{requirement}'"


def require_torch(verb: str) -> None:
    """Refuse a verb that starts workers if PyTorch is not installed."""
    require("torch", f"'meshwise {verb}'")
