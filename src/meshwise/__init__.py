"""meshwise finds the fastest way to train or serve a model on the accelerators you have, runs it, and checks the prediction.

    import meshwise as mw

    p = mw.plan("bloom-176b", on="jean-zay:48", batch="2048x2048", framework="megatron-deepspeed")
    p.best.step, p.best.mfu, p.best.time["bubble"], p.best.memory["activations"]
    p.to_frame(), p.explain(versus="tp=8,pp=6"), p.vary(nodes="24..96"), p.save("plan.json")
    s = mw.serve("llama-3.3-70b:q4_k_m", on="4xrtx4060ti-16gb", context="16k")

Each verb of the command line is a function here, with the same words as keywords. `meshwise.api` has them all.
"""

import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from meshwise.api import (
        about,
        audit,
        bench,
        calibrate,
        cheapest,
        check,
        count,
        explain,
        export,
        generate,
        load,
        make_gguf,
        pick,
        plan,
        preflight,
        probe,
        read,
        replay,
        rollouts,
        run,
        serve,
        shapes,
        share,
        show,
        tune,
        validate,
    )
    from meshwise.catalogue.chips import find_chip
    from meshwise.catalogue.clusters import find_cluster
    from meshwise.errors import DoesNotFit, UserError
    from meshwise.models.find import find_model

__all__ = [
    "DoesNotFit", "UserError", "about", "audit", "bench", "calibrate", "cheapest", "check", "count", "explain", "export",
    "find_chip", "find_cluster", "find_model", "generate", "load", "make_gguf", "pick", "plan", "preflight", "probe", "read",
    "replay", "rollouts", "run", "serve", "shapes", "share", "show", "tune", "validate",
]  # fmt: skip

_HOMES = {
    "find_chip": "catalogue.chips",
    "find_cluster": "catalogue.clusters",
    "find_model": "models.find",
    "DoesNotFit": "errors",
    "UserError": "errors",
}


def __getattr__(name: str) -> object:
    """Import a public name when it is first used, so that `count` does not pay for the search."""
    if name not in __all__:
        raise AttributeError(f"module 'meshwise' has no attribute {name!r}")
    return getattr(import_module(f"meshwise.{_HOMES.get(name, 'api')}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)


class _Verb(ModuleType):
    """A package named like a verb (plan, replay, run, audit, calibrate, tune): calling the package calls the function in `meshwise.api`."""

    @property
    def _function(self) -> Any:
        return getattr(import_module("meshwise.api"), self.__name__.rpartition(".")[2])

    @property
    def __signature__(self) -> object:
        import inspect

        return inspect.signature(self._function)

    @property
    def __doc__(self) -> str | None:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The docstring of the verb, for help() and a notebook's '?'; the package's own is in its __init__.py."""
        return self._function.__doc__

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(*args, **kwargs)


class _Root(ModuleType):
    """This module, with verbs that stay callable after their packages are imported."""

    def __setattr__(self, name: str, value: object) -> None:
        # importing the package meshwise.plan sets the attribute `plan` of this module; `meshwise.plan(...)` must still work
        if name in __all__ and isinstance(value, ModuleType):
            value.__class__ = _Verb
        super().__setattr__(name, value)


sys.modules[__name__].__class__ = _Root
