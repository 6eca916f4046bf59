"""BenchAsk: lists of settings, and addresses of RPC hosts."""

import pytest

from meshwise.errors import UserError
from meshwise.run.bench.ask import BenchAsk, addresses, numbers


def test_lists_double() -> None:
    assert numbers("1,2,4..64") == (1, 2, 4, 8, 16, 32, 64)
    assert numbers("128,2k") == (128, 2048)
    with pytest.raises(UserError, match="--users '0'"):
        BenchAsk("http://x", users="0")


def test_keywords_are_numbers_or_lists_of_them_and_the_command_reproduces_them() -> None:
    ask = BenchAsk("model.gguf", prompt=512, users=[1, 4], output="16,32", patience="1min")
    assert (ask.prompt, ask.users, ask.output, ask.patience) == ((512,), (1, 4), (16, 32), 60.0)
    assert ask.command() == "meshwise bench model.gguf --prompt 512 --output 16,32 --users 1,4 --patience 60s"


def test_addresses_are_read_by_host() -> None:
    assert addresses("host1=10.0.0.5, host2=loopback") == {"host1": "10.0.0.5", "host2": "loopback"}
    with pytest.raises(UserError, match="--rpc 'host1=': expected a host of the plan and its address"):
        BenchAsk("plan.json", rpc="host1=")
