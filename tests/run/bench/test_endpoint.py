"""`meshwise bench URL`: correct answers are measured, faults are reported, and nothing hangs."""

import json
import shutil
import ssl
import subprocess
from pathlib import Path

import pytest

from support.command import Run, refused
from support.scripted_endpoint import Script, serving

SHORT = ["--prompt", "20", "--output", "8", "--repeats", "2", "--patience", "1s"]


def test_a_scripted_endpoint_is_measured_as_it_was_scripted(run: Run) -> None:
    """A first token after 50 ms and 20 ms between tokens: no less, and on a busy machine more."""
    with serving(Script(first=0.05, gap=0.02).serve) as port:
        done = run("bench", f"http://127.0.0.1:{port}", *SHORT, "--users", "1,3", "--json")
    assert done.code == 0
    assert [json.loads(line)["event"] for line in done.err.splitlines()] == ["progress"] * 6
    told = json.loads(done.out)
    assert (told["model"], told["kind"]) == ("scripted", "bench")
    one, three = told["points"]
    assert (one["users"], three["users"], one["prompt_tokens"]) == (1, 3, 20)
    for point in (one, three):
        assert point["ttft_p50"] >= 0.05
        assert point["gap_p50"] >= 0.019
        assert 0 < point["decode"] <= point["users"] / 0.019
        assert point["faults"] == {}
    assert len(one["decode_values"]) == 2


def test_prompts_differ_and_request_the_measured_lengths(run: Run) -> None:
    script = Script()
    with serving(script.serve) as port:
        run("bench", f"http://127.0.0.1:{port}", *SHORT, "--users", "2")
    asked = [one for one in script.seen if one.get("max_tokens") == 8]
    assert len(asked) == 2 * 3
    assert len({one["prompt"] for one in asked}) == len(asked)
    assert all(one["stream"] and one["ignore_eos"] and not one["cache_prompt"] for one in asked)


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("drop", "dropped the connection"),
        ("malformed", "sent an invalid event stream: not an event field"),
        ("json", "sent an invalid event stream: event data is not JSON"),
        ("500", "refused with HTTP 500: the model fell over"),
        ("stall", "did not answer in time"),
    ],
)
def test_a_broken_stream_is_reported_and_gives_no_rate(run: Run, fault: str, words: str) -> None:
    with serving(Script(fault=fault).serve) as port:
        done = run("bench", f"http://127.0.0.1:{port}", *SHORT, "--users", "1", "--json")
    assert done.code == 1
    assert f"1 of 1 settings could not be measured: the endpoint {words}" in done.err
    (point,) = json.loads(done.out)["points"]
    assert (point["decode"], point["prefill"], point["decode_values"]) == (None, None, [])


def test_an_endpoint_that_never_answers_times_out(run: Run) -> None:
    with serving(Script(fault="never").serve) as port:
        assert "did not answer in time" in refused(run("bench", f"http://127.0.0.1:{port}", *SHORT))


@pytest.mark.parametrize("claim", [1, 500])
def test_a_wrong_token_count_changes_no_rate(run: Run, claim: int) -> None:
    """Eight events are eight tokens, whether it claims one or five hundred."""
    with serving(Script(gap=0.01, claim=claim).serve) as port:
        told = json.loads(run("bench", f"http://127.0.0.1:{port}", *SHORT, "--json").out)
    (point,) = told["points"]
    assert 0 < point["decode"] <= 1 / 0.0095
    assert any(f"claims {claim} tokens" in note for note in point["notes"])


def test_an_endpoint_without_extras_is_measured_without_them(run: Run) -> None:
    with serving(Script(fault="strict").serve) as port:
        done = run("bench", f"http://127.0.0.1:{port}", *SHORT)
    assert done.code == 0
    assert "does not accept ignore_eos" in done.out


def test_a_missing_key_is_requested_and_a_given_key_is_never_printed(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = "sk-very-secret-1234"
    with serving(Script(key=key).serve) as port:
        url = f"http://127.0.0.1:{port}"
        assert "needs a key: name the environment variable that holds it with --key-env (HTTP 401)" in refused(
            run("bench", url, *SHORT)
        )
        assert "no such environment variable" in refused(run("bench", url, *SHORT, "--key-env", "NO_SUCH_KEY"))
        monkeypatch.setenv("MY_KEY", "another-key")
        assert "rejects the key" in refused(run("bench", url, *SHORT, "--key-env", "MY_KEY"))
        monkeypatch.setenv("MY_KEY", key)
        done = run(
            "bench", url, *SHORT, "--key-env", "MY_KEY", "--out", str(tmp_path / "r.json"), "--rows", str(tmp_path / "r.csv")
        )
    assert done.code == 0
    assert key not in done.out + done.err + (tmp_path / "r.json").read_text() + (tmp_path / "r.csv").read_text()
    assert "--key-env" in refused(run("bench", f"http://me:{key}@127.0.0.1:1", *SHORT))
    assert key not in refused(run("bench", f"http://me:{key}@127.0.0.1:1", *SHORT))


def test_an_untrusted_certificate_is_refused(run: Run, tmp_path: Path) -> None:
    if shutil.which("openssl") is None:
        pytest.skip("no openssl to make a certificate with")
    pair = [str(tmp_path / "key.pem"), str(tmp_path / "cert.pem")]
    made = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    subprocess.run([*made, "-keyout", pair[0], "-out", pair[1]], check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair[1], pair[0])
    with serving(Script().serve, context) as port:
        told = refused(run("bench", f"https://127.0.0.1:{port}", *SHORT))
    assert "could not be reached (its certificate is not trusted" in told


def test_two_reports_are_compared(run: Run, tmp_path: Path) -> None:
    file = str(tmp_path / "before.json")
    with serving(Script(gap=0.05).serve) as port:
        run("bench", f"http://127.0.0.1:{port}", *SHORT, "--out", file)
    with serving(Script(gap=0.005).serve) as port:
        done = run("bench", f"http://127.0.0.1:{port}", *SHORT, "--against", file)
    assert "1 concurrent request, prompt 20, generation: +" in done.out
    (tmp_path / "other.json").write_text("{}")
    assert "not a report of 'meshwise bench --out'" in refused(
        run("bench", "http://127.0.0.1:1", *SHORT, "--against", str(tmp_path / "other.json"))
    )


def test_bad_input_is_one_line(run: Run) -> None:
    assert "could not be reached" in refused(run("bench", "http://127.0.0.1:1", *SHORT))
    assert "is not a URL" in refused(run("bench", "http://", *SHORT))
    assert "--vary only applies to an engine that bench starts" in refused(
        run("bench", "http://127.0.0.1:1", "--vary", "gpus=1..2")
    )
    assert "--key-env only applies to a URL" in refused(run("bench", "llama-debug", "--key-env", "X"))
    assert "--users '1..x': expected whole numbers such as 1,2,4..64" in refused(
        run("bench", "http://127.0.0.1:1", "--users", "1..x")
    )
    assert "missing URL, PLAN, GGUF or MODEL" in refused(run("bench"))
    assert "this machine has 0 GPUs" in refused(run("bench", "llama-3-8b:q4_k_m", "--on", "cpu", "--vary", "gpus=1..99"))
    assert "at least two tokens" in refused(run("bench", "http://127.0.0.1:1", "--output", "1"))
