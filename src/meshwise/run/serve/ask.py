"""ServeRun: how to start the engine of a serving plan or of a .gguf, in the words of the command line."""

import os
from pathlib import Path
from typing import ClassVar

from meshwise.models import find
from meshwise.plan.fields import FLAG, TEXT, Ask, asked, question, whole
from meshwise.run.bench.ask import ADDRESSES, TIME, addresses

SERVING = "Serving (a plan of 'meshwise serve', or a .gguf)"
KIND = "serve"
"""`kind` in the plan.json of `meshwise serve`."""


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

    what: str = asked(default="", converter=TEXT, help="A plan.json of 'meshwise serve', or a .gguf.", kw_only=False)
    on: str = asked(
        default="", converter=TEXT, help="This machine as a cluster: 2xrtx3090.", shown="detected", complete="clusters"
    )
    dry_run: bool = asked(default=False, converter=FLAG, help="Print the commands and the memory on each device; start nothing.")
    port: int = asked(default=8080, converter=whole(0, 65535), help="Port to listen on; 0 takes a free one.", group=SERVING)
    host: str = asked(default="127.0.0.1", converter=TEXT, help="Address to listen on.", group=SERVING)
    engine_path: str = asked(
        default="", converter=TEXT, help="Folder of the engine's programs, or xllamacpp.", shown="PATH", group=SERVING
    )
    model_file: str = asked(default="", converter=TEXT, help="The .gguf, if it is not where the plan says.", group=SERVING)
    rpc: str = asked(
        default="", converter=ADDRESSES, help="Address of each RPC host; host1=loopback starts it here.", group=SERVING
    )
    serve_rpc: str = asked(
        default="", converter=ADDRESSES, help="Start the RPC servers of this host of the plan: host1=192.168.1.7.", group=SERVING
    )
    threads: int = asked(default=0, converter=whole(0, 10**5), help="CPU threads.", shown="the engine's", group=SERVING)
    start_within: float = asked(default="600s", converter=TIME, help="Time to load, at most.", group=SERVING)

    @property
    def addresses(self) -> dict[str, str]:
        """Addresses by host of the plan; 'loopback' stands for RPC servers that are started here."""
        return addresses(self.rpc or self.serve_rpc)
