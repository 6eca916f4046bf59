"""ServeRun: how to start the engine of a serving plan or of a .gguf, in the words of the command line."""

import os
from pathlib import Path
from typing import ClassVar

from meshwise.models import find
from meshwise.plan.fields import FLAG, TEXT, Ask, asked, question, whole
from meshwise.run.bench.ask import ADDRESSES, TIME, addresses

KIND = "serve"  # `kind` in the plan.json of `meshwise serve`


def serves(what: str) -> bool:
    """Return whether `what` is served rather than trained: a .gguf, or a plan.json of `meshwise serve`."""
    if what.lower().endswith(".gguf"):
        return True
    if not what.endswith(".json") or not os.path.isfile(what):
        return False
    return find.values_of(Path(what)).get("kind") == KIND


@question
class ServeRun(Ask):
    """Start an engine: `meshwise run` of a serving plan or of a .gguf."""

    verb: ClassVar[str] = "run"

    what: str = asked(default="", converter=TEXT, kw_only=False)
    on: str = asked(default="", converter=TEXT)
    dry_run: bool = asked(default=False, converter=FLAG)
    port: int = asked(default=8080, converter=whole(0, 65535))
    host: str = asked(default="127.0.0.1", converter=TEXT)
    engine_path: str = asked(default="", converter=TEXT)
    model_file: str = asked(default="", converter=TEXT)
    rpc: str = asked(default="", converter=ADDRESSES)
    serve_rpc: str = asked(default="", converter=ADDRESSES)
    threads: int = asked(default=0, converter=whole(0, 10**5))
    start_within: float = asked(default="600s", converter=TIME)

    @property
    def addresses(self) -> dict[str, str]:
        """Addresses by host of the plan; 'loopback' stands for RPC servers that are started here."""
        return addresses(self.rpc or self.serve_rpc)
