"""Rules that every request must satisfy, and headers that every reply carries."""

import os
import socket
import subprocess

import pytest

from meshwise.errors import UserError
from meshwise.ui.web import guard
from meshwise.ui.web import server as servers
from meshwise.ui.web.peers import user_of
from support.pages import SMALL, Server, serving

TOKEN = "a-long-enough-secret"


def test_every_reply_has_a_strict_policy(server: Server) -> None:
    missing: list[str] = []
    for path in (
        "/plan",
        f"/plan?{SMALL}",
        "/plan.json",
        "/static/app.js",
        "/static/parts.css",
        "/nowhere",
        "/suggest?catalogue=x",
    ):
        reply = server.get(path)
        policy = reply.headers.get("content-security-policy", "")
        good = "default-src 'none'" in policy and "unsafe" not in policy and reply.headers["x-content-type-options"] == "nosniff"
        missing += [] if good else [path]
    assert missing == []
    assert "script-src 'self';" in server.get("/plan").headers["content-security-policy"]


def test_pages_have_no_script_or_style_inside(server: Server) -> None:
    text = server.get(f"/plan?{SMALL}").text
    assert "<style" not in text
    assert ' style="' not in text
    assert " onclick" not in text
    assert '<script type="application/json"' in server.get(f"/mesh?{SMALL}").text


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", "localhost.", "", "[::2]", "0.0.0.0"]
)
def test_another_name_for_this_machine_is_not_answered(server: Server, host: str) -> None:
    assert server.get("/plan", host=host).status == 421


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost:99", "LOCALHOST", "[::1]:8765"])
def test_names_of_loopback_are_answered(server: Server, host: str) -> None:
    assert server.get("/static/icon.svg", host=host).status == 200


def test_uploads_from_other_sites_are_refused(server: Server) -> None:
    assert server.upload(("a.csv", b"a,b\n1,2\n"), headers={"origin": "http://evil.example"}).status == 403
    assert server.upload(("a.csv", b"a,b\n1,2\n"), headers={"sec-fetch-site": "cross-site"}).status == 403
    assert server.upload(("a.csv", b"a,b\n1,2\n"), headers={"origin": server.address}).status == 400


def test_questions_from_other_sites_are_refused_unless_somebody_follows_a_link(server: Server) -> None:
    """An image or a script of another page would make the server search."""

    def asked(path: str, **headers: str) -> int:
        return server.send("GET", path, b"", {name.replace("_", "-"): value for name, value in headers.items()}).status

    for path in ("/plan", "/plan.json", "/suggest?catalogue=models", "/static/icon.svg"):
        for site in ("cross-site", "same-site"):
            for kind in ("image", "script", "iframe", "empty", "style"):
                assert asked(path, sec_fetch_site=site, sec_fetch_mode="no-cors", sec_fetch_dest=kind) == 403
    assert asked("/plan", sec_fetch_site="cross-site", sec_fetch_mode="navigate", sec_fetch_dest="document") == 200
    assert asked("/plan", sec_fetch_site="same-origin", sec_fetch_mode="cors", sec_fetch_dest="empty") == 200
    assert asked("/plan", sec_fetch_site="none", sec_fetch_mode="navigate", sec_fetch_dest="document") == 200


def test_large_uploads_are_refused_before_they_are_read(server: Server) -> None:
    assert server.send("POST", "/audit", b"", {"transfer-encoding": "chunked", "content-length": "99999999"}).status in (400, 413)
    reply = server.upload(("big.log", b"x" * (guard.MAX_BODY_BYTES + 1)))
    assert reply.status == 413
    assert "at most 4 MiB" in reply.text


def test_a_question_that_is_too_long_is_refused(server: Server) -> None:
    assert server.get("/plan?model=" + "x" * 9000).status == 414


def test_nothing_changes_by_get_and_other_methods_do_not_exist(server: Server) -> None:
    for method in ("PUT", "DELETE", "PATCH", "POST"):
        assert server.send(method, "/plan").status == 405


def test_static_files_stay_in_their_folder(server: Server) -> None:
    for path in ("/static/../guard.py", "/static/%2e%2e/guard.py", "/static/..%2fguard.py", "/static//etc/passwd"):
        assert server.get(path).status == 404


def test_a_token_is_needed_where_one_was_set() -> None:
    with serving(token=TOKEN) as closed:
        assert closed.get("/plan").status == 401
        assert closed.get("/plan?token=wrong-wrong-wrong-wrong").status == 401
        opened = closed.get(f"/plan?{SMALL}&token={TOKEN}")
        assert (opened.status, opened.headers["location"]) == (303, f"/plan?{SMALL}")
        cookie = opened.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite=strict" in cookie
        assert closed.get("/plan", cookie=cookie.partition(";")[0]).status == 200
        assert closed.get("/plan", authorization=f"Bearer {TOKEN}").status == 200
        assert closed.get(f"//evil.example/plan?token={TOKEN}").headers["location"] == "/evil.example/plan"


def test_an_address_that_others_reach_needs_a_good_token() -> None:
    servers.check("127.0.0.1", "")
    servers.check("0.0.0.0", TOKEN)
    for host, token in (
        ("0.0.0.0", ""),
        ("192.168.1.5", ""),
        ("::", ""),
        ("0.0.0.0", "short"),
        ("0.0.0.0", 'a"long;enough secret'),
    ):
        with pytest.raises(UserError):
            servers.check(host, token)


def test_a_taken_port_is_one_clear_line(server: Server) -> None:
    with pytest.raises(UserError, match="--port 0 takes a free one"):
        servers.listen("127.0.0.1", server.port)


def test_the_kernel_names_the_user_of_a_connection() -> None:
    for family, host in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
        try:
            listening = socket.create_server((host, 0), family=family)
        except OSError:
            continue  # a machine without IPv6
        with listening, socket.create_connection(listening.getsockname()[:2]) as client:
            assert user_of(client.getsockname()[:2], listening.getsockname()[:2]) == os.getuid()
            assert user_of((host, 1), (host, 2)) is None


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become another user")
def test_another_user_of_this_machine_is_refused_without_a_token(server: Server) -> None:
    port = server.address.rpartition(":")[2]
    lines = "GET /static/icon.svg HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n\\r\\n"
    asked = f"exec 3<>/dev/tcp/127.0.0.1/{port}; printf '{lines}' >&3; cat <&3"
    answers = {
        user: subprocess.run(["bash", "-c", asked], capture_output=True, text=True, check=True, user=user).stdout
        for user in (0, 65534)
    }
    assert answers[0].startswith("HTTP/1.1 200")
    assert answers[65534].startswith("HTTP/1.1 403")
    assert "belongs to another user" in answers[65534]
