"""torch's key-value store of a run, without its two open doors: it listens on one address instead of all, and torchrun's rendezvous keeps
its state there as signed JSON instead of a pickle, which whoever reaches the port could replace by code."""

# pyright: reportUnknownMemberType=false, reportMissingTypeStubs=false, reportPrivateUsage=false, reportAttributeAccessIssue=false
# pyright: reportPrivateImportUsage=false, reportUnknownArgumentType=false
import json
from datetime import datetime, timedelta
from typing import Any

from torch.distributed.elastic.rendezvous import RendezvousParameters, c10d_rendezvous_backend, dynamic_rendezvous
from torch.distributed.elastic.rendezvous.api import RendezvousConnectionError
from torch.distributed.elastic.rendezvous.dynamic_rendezvous import DynamicRendezvousHandler, _NodeDesc, _RendezvousState
from torch.distributed.elastic.rendezvous.utils import parse_rendezvous_endpoint
from torch.distributed.rendezvous import TCPStore  # pyright: ignore[reportPrivateImportUsage]

from meshwise.workers.secret import opened, signed
from meshwise.workers.store import LOOPBACK, serve

STATE = "rendezvous"  # the purpose for which torchrun's state is signed
READ_SECONDS = 60  # torch's own default for an answer of the store


def install() -> None:
    """Replace what torchrun uses: it has no option for the address, nor for how it writes its state."""
    c10d_rendezvous_backend._create_tcp_store = _rendezvous_store
    DynamicRendezvousHandler._create_tcp_store_server = lambda self, master_addr, master_port: serve(  # pyright: ignore[reportUnknownLambdaType]
        master_addr, master_port, timedelta(seconds=READ_SECONDS)
    )
    dynamic_rendezvous.pickle = StateText


def _rendezvous_store(given: RendezvousParameters) -> TCPStore:
    """Return the store of the rendezvous: on its host a server, on other nodes a connection to it."""
    host, port = parse_rendezvous_endpoint(given.endpoint, default_port=0)
    timeout = timedelta(seconds=given.get_as_int("read_timeout", READ_SECONDS) or READ_SECONDS)
    try:
        if given.get_as_bool("is_host") is False:
            return TCPStore(host, port, is_master=False, multi_tenant=True, timeout=timeout)
        return serve(LOOPBACK if host == "localhost" else host, port, timeout)
    except (ValueError, RuntimeError, TimeoutError, OSError) as error:
        raise RendezvousConnectionError("The connection to the store has failed.") from error


class StateError(ValueError):
    """A state of the rendezvous that no agent writes."""


class StateText:
    """The state of torchrun's rendezvous as signed JSON, under the names that torch calls: those of the module pickle."""

    PickleError = StateError

    @staticmethod
    def dumps(state: _RendezvousState) -> bytes:
        values = vars(state) | {
            "deadline": state.deadline.isoformat() if state.deadline else None,
            "participants": [[*_described(node), rank] for node, rank in state.participants.items()],
            "wait_list": [_described(node) for node in state.wait_list],
            "redundancy_list": [_described(node) for node in state.redundancy_list],
            "last_heartbeats": [[*_described(node), at.isoformat()] for node, at in state.last_heartbeats.items()],
        }
        return signed(STATE, json.dumps(values).encode())

    @staticmethod
    def loads(text: bytes) -> _RendezvousState:
        state = _RendezvousState()
        try:
            values: dict[str, Any] = json.loads(opened(STATE, text))
            state.round, state.complete, state.closed = int(values["round"]), values["complete"] is True, values["closed"] is True
            state.deadline = datetime.fromisoformat(values["deadline"]) if values["deadline"] else None
            state.participants = {_node(*node): int(rank) for *node, rank in values["participants"]}
            state.wait_list = {_node(*node) for node in values["wait_list"]}
            state.redundancy_list = {_node(*node) for node in values["redundancy_list"]}
            state.last_heartbeats = {_node(*node): datetime.fromisoformat(at) for *node, at in values["last_heartbeats"]}
        except (ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
            raise StateError(f"not a state of the rendezvous ({type(error).__name__})") from None
        return state


def _described(node: _NodeDesc) -> list[Any]:
    return [node.addr, node.pid, node.local_id]


def _node(address: object, process: object, number: object) -> _NodeDesc:
    if not isinstance(address, str) or type(process) is not int or type(number) is not int:
        raise StateError("not a node")
    return _NodeDesc(address, process, number)
