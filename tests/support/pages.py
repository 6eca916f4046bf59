"""A server of pages in this process, and a client that talks to it over a socket."""

import http.client
import json
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn

from meshwise.ui.web.app import create
from meshwise.ui.web.guard import LOOPBACK
from meshwise.ui.web.named import Named
from meshwise.ui.web.server import listen

SMALL = "model=llama-debug&on=1x8xh100-sxm&batch=64&seq=512"
BLOOM = "model=bloom-176b&on=jean-zay%3A48&batch=2048x2048&framework=megatron-deepspeed&tokens=366B"
CARDS = "model=llama-3.3-70b%3Aq4_k_m&on=4xrtx4060ti-16gb&context=16k"


@dataclass(frozen=True)
class Answered:
    """A reply."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode()

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass(frozen=True)
class Server:
    """A running server."""

    port: int

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def get(self, path: str, **headers: str) -> Answered:
        return self.send("GET", path, b"", headers)

    def send(self, method: str, path: str, body: bytes = b"", headers: Mapping[str, str] | None = None) -> Answered:
        """Send one request; underscores in the names of headers stand for dashes."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        try:
            given = {name.replace("_", "-"): value for name, value in (headers or {}).items()}
            connection.putrequest(method, path, skip_host=any(name.lower() == "host" for name in given))
            for name, value in given.items():
                connection.putheader(name, value)
            if body or method == "POST":
                connection.putheader("content-length", str(len(body)))
            connection.endheaders(body or None)
            reply = connection.getresponse()
            return Answered(reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read())
        finally:
            connection.close()

    def upload(
        self, *files: tuple[str, bytes], page: str = "audit", headers: Mapping[str, str] | None = None, **fields: str
    ) -> Answered:
        """Send files, by name, and fields as a browser's form does."""
        boundary = "meshwise-test-boundary"
        part = f'--{boundary}\r\ncontent-disposition: form-data; name="'
        body = b"".join(f'{part}{name}"\r\n\r\n{value}\r\n'.encode() for name, value in fields.items())
        for name, content in files:
            body += f'{part}file"; filename="{name}"\r\n\r\n'.encode() + content + b"\r\n"
        body += f"--{boundary}--\r\n".encode()
        return self.send(
            "POST", f"/{page}", body, {"content-type": f"multipart/form-data; boundary={boundary}", **(headers or {})}
        )


@contextmanager
def serving(named: Named | None = None, token: str = "") -> Iterator[Server]:
    """Serve pages on a free port while the block runs."""
    bound = listen("127.0.0.1", 0)
    application = create(named, hosts=frozenset(LOOPBACK), token=token)
    server = uvicorn.Server(uvicorn.Config(application, log_level="critical", lifespan="off", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, args=([bound],), daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.01)
    try:
        yield Server(bound.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(10)
        bound.close()
