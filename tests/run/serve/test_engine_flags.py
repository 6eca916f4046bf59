"""`bench --engine-flags`: further flags for an engine's server, after those of its plan."""

import pytest

from meshwise.errors import UserError
from meshwise.run.bench.ask import BenchAsk
from meshwise.run.serve import bench, xllamacpp
from meshwise.run.serve.process import Program
from meshwise.run.serve.programs import with_flags

RPC = Program(name="rpc-server", command=("rpc-server", "-p", "1"))
SERVER = Program(name="llama-server", command=("llama-server", "-fa", "on"))


def test_only_the_server_gets_the_flags_and_they_come_last() -> None:
    helper, server = with_flags([RPC, SERVER], "--ubatch-size 1024 --alias 'a b'")
    assert helper == RPC
    assert server.command == ("llama-server", "-fa", "on", "--ubatch-size", "1024", "--alias", "a b")
    assert with_flags([SERVER], "") == [SERVER]


def test_a_quote_that_is_not_closed_is_one_line() -> None:
    with pytest.raises(UserError, match="--engine-flags"):
        with_flags([SERVER], "--alias 'a")


def test_a_url_takes_no_flags() -> None:
    with pytest.raises(UserError, match="--engine-flags only applies to an engine that bench starts"):
        bench.bench(BenchAsk(what="http://127.0.0.1:1", engine_flags="-b 1"))


def test_the_last_of_a_repeated_flag_counts() -> None:
    given = xllamacpp.parse(
        ["-m", "x.gguf", "-fa", "on", "-t", "2", "--flash-attn", "off", "--ubatch-size", "64", "--threads", "3"]
    )
    assert (given.flash, given.ubatch, given.threads) == ("off", 64, 3)
