"""The clock of a stream: when its bytes arrived, not when this process read them."""

import asyncio
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path

import pytest

from meshwise.run.bench import client
from support.scripted_endpoint import END, STREAM, Writer, serving, token, usage

BUSY = 0.4
"""Seconds in which the client reads nothing; no core is that late without it."""


async def blocked(where: client.Address) -> client.Reply:
    asked = asyncio.create_task(client.ask(where, "POST", "/v1/completions", {"max_tokens": 1}, patience=20))
    await asyncio.sleep(0.2)  # the request is out
    time.sleep(BUSY)  # as other streams or other processes would keep it
    return await asked


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux stamps what a socket receives")
@pytest.mark.parametrize("secure", [False, True])
def test_a_busy_client_still_records_when_a_token_arrived(secure: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sent at the beginning of its absence, read at the end. Under TLS too, where asyncio reads into a buffer."""
    sent: list[float] = []

    async def answer(reader: asyncio.StreamReader, writer: Writer) -> None:
        await reader.readuntil(b"\r\n\r\n")
        await asyncio.sleep(0.25)
        sent.append(time.perf_counter())
        writer.write(STREAM + token() + usage(1, 1) + END)
        await writer.drain()
        writer.close()

    context = trusted(tmp_path, monkeypatch) if secure else None
    with serving(answer, context) as port:
        seen = asyncio.run(blocked(client.Address(host="127.0.0.1", port=port, secure=secure)))
    assert seen.complete, seen.message
    assert 0 <= seen.arrivals[0] - sent[0] < BUSY / 2


def trusted(folder: Path, monkeypatch: pytest.MonkeyPatch) -> ssl.SSLContext:
    """A certificate that signs itself, and that this process trusts."""
    words = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=localhost"]
    words += ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", str(folder / "key"), "-out", str(folder / "certificate")]
    try:
        subprocess.run(words, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("openssl makes the certificate, and is not here")
    monkeypatch.setenv("SSL_CERT_FILE", str(folder / "certificate"))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "certificate", folder / "key")
    return context


def test_without_a_kernel_timestamp_the_time_of_reading_counts() -> None:
    """As on systems that give none: the time is there, and not before the bytes were sent."""
    here, there = socket.socketpair()
    reader = client._Stamped(there.family, there.type, there.proto, there.detach())
    with here, reader:
        before = time.perf_counter()
        here.sendall(b"token")
        assert reader.recv(100) == b"token"
        assert before <= reader.arrived <= time.perf_counter()
        here.sendall(b"more")
        into = bytearray(8)
        assert reader.recv_into(into) == 4
        assert before < reader.arrived
