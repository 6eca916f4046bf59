"""An endpoint that floods, trickles or deceives ends in one line, without escape codes and without any part of the key."""

import json

import pytest

from meshwise.run.bench.client import Address
from support.command import Run
from support.hostile_endpoints import FAULTS, KEY, Hostile
from support.scripted_endpoint import serving

PATIENCE = "0.4s"


def pieces(key: str, size: int = 5) -> list[str]:
    return [key[i : i + size] for i in range(len(key) - size + 1)]


@pytest.mark.parametrize("late", [False, True], ids=["at once", "while measured"])
@pytest.mark.parametrize("fault", FAULTS)
def test_a_hostile_endpoint_ends_in_one_line(run: Run, monkeypatch: pytest.MonkeyPatch, fault: str, late: bool) -> None:
    monkeypatch.setenv("MY_KEY", KEY)
    short = ("--prompt", "20", "--output", "8", "--repeats", "1", "--patience", PATIENCE, "--key-env", "MY_KEY")
    with serving(Hostile(fault, late=late).serve) as port:
        done = run("bench", f"http://127.0.0.1:{port}", *short, "--json")
    assert done.code in (0, 1, 2)
    said = [line for line in done.err.splitlines() if not line.startswith('{"event": "progress"')]
    assert len(said) == (done.code != 0)
    printed = done.out + done.err
    assert "".join(printed.split("\n")).isprintable()
    assert not [piece for piece in pieces(KEY) if piece.lower() in printed.lower()]
    if done.out:
        json.loads(done.out)


def test_a_key_is_recognized_in_pieces_backwards_and_encoded() -> None:
    where = Address(host="h", port=1, key=KEY)
    hidden = "(not shown: it repeats part of the key)"
    shown = ("model 'llama' not found", "maximum context length is 4096 tokens", "", "401: bad key")
    assert [where.redact(text) for text in shown] == list(shown)
    texts = [
        KEY,
        KEY[4:12],
        KEY[::-1],
        KEY.upper(),
        ".".join(KEY),
        KEY.encode().hex(),
        f"x{KEY[7:14]}y",
        "c2stVHIwdWI0ZG9yLWFuZC0zLWNvcnJlY3Q",
    ]
    assert [text for text in texts if where.redact(text) != hidden] == []
    assert Address(host="h", port=1).redact("anything") == "anything"
