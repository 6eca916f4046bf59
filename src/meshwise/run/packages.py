"""Optional packages: refuse what needs one that is not installed, with the command that installs it."""

import importlib.util

from meshwise.errors import UserError


def require(package: str, what: str, install: str) -> None:
    """Refuse `what` if a package is not installed."""
    if importlib.util.find_spec(package) is None:
        raise UserError(f"{what} needs {package}, which is not installed: {install}")


def require_torch(verb: str) -> None:
    """Refuse a verb that starts workers if PyTorch is not installed."""
    if importlib.util.find_spec("torch") is None:
        raise UserError(f"'meshwise {verb}' needs PyTorch, which is not installed: pip install 'meshwise[train]'")
