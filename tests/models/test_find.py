"""The names that a user may give for a model, and the model that each of them finds."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from meshwise.errors import UserError
from meshwise.models.find import filter_presets, find_model, find_values, hub_ids, presets, values_of
from support.command import one_line
from support.small_configs import small

LLAMA_3_70B = 70_553_706_496


def refusal(name: str) -> str:
    with pytest.raises(UserError) as caught:
        find_model(name)
    return one_line(caught.value)


def written(path: Path, values: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(values))
    return path


@pytest.mark.parametrize(
    "name",
    [
        "llama-3-70b",
        "Llama3 70B",
        "LLAMA-3-70B",
        "llama_3_70b",
        "meta-llama/Meta-Llama-3-70B",
        "META-LLAMA/meta-llama-3-70b-instruct",
    ],
)
def test_one_preset_answers_to_its_spellings_and_its_hub_ids(name: str) -> None:
    model = find_model(name)
    assert (model.name, model.params) == ("llama-3-70b", LLAMA_3_70B)
    assert model.source.startswith("https://huggingface.co/meta-llama/")


@pytest.mark.parametrize(("name", "billions"), [("opt-13b", 12.85), ("OPT 1.3B", 1.32), ("gpt3 13b", 12.85), ("GPT3-1.3B", 1.32)])
def test_a_decimal_point_tells_two_sizes_apart(name: str, billions: float) -> None:
    assert round(find_model(name).params / 1e9, 2) == billions


def test_every_hub_id_of_a_preset_finds_it() -> None:
    for hub_id, path in hub_ids().items():
        assert find_model(hub_id.upper()).name == path.name.removesuffix(".json")


def test_a_config_json_and_its_folder_are_the_same_model(tmp_path: Path) -> None:
    file = written(tmp_path / "my-model" / "config.json", small("llama"))
    from_file, from_folder = find_model(str(file)), find_model(str(file.parent))
    assert from_file == from_folder
    assert (from_file.name, from_file.source) == ("my-model", str(file))


def test_a_config_under_another_name_is_called_by_it(tmp_path: Path) -> None:
    assert find_model(str(written(tmp_path / "tiny.json", small("gpt2")))).name == "tiny.json"


def test_a_file_without_a_suffix_is_read_when_it_is_there(tmp_path: Path) -> None:
    assert find_model(str(written(tmp_path / "config", small("gpt2")))).model_type == "gpt2"


def test_a_byte_order_mark_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "m.json").write_bytes(b"\xef\xbb\xbf" + json.dumps(small("gpt2")).encode())
    assert find_model(str(tmp_path / "m.json")).model_type == "gpt2"


def test_a_users_own_preset_comes_before_the_built_in_one(home: Path) -> None:
    written(home / "models" / "gpt2.json", small("gpt2") | {"meshwise": {"source": "mine"}})
    written(home / "models" / "house.json", small("llama") | {"meshwise": {"ids": ["My/House"], "source": "the attic"}})
    assert find_model("GPT-2").source == "mine"
    assert find_model("my/house") == find_model("house")
    assert find_model("house").source == "the attic"
    assert "house" in presets()


@pytest.mark.parametrize("own", [{"ids": 5}, {"ids": None}, {"ids": [7, {}]}, {"source": [1]}, 3, None, []])
def test_invalid_metadata_in_a_users_preset_is_ignored(home: Path, own: object) -> None:
    written(home / "models" / "odd.json", small("llama") | {"meshwise": own, "_name_or_path": 9})
    assert find_model("odd").model_type == "llama"
    assert find_model("meta-llama/Meta-Llama-3-70B").params == LLAMA_3_70B


def test_an_ollama_tag_finds_its_preset_and_that_is_noted() -> None:
    model = find_model("llama3.3:70b-instruct-q4_K_M")
    assert model.name == "llama-3.3-70b"
    assert model.notes == ("the Ollama tag llama3.3:70b-instruct-q4_K_M is taken as the preset llama-3.3-70b",)
    assert find_values("llama3.3:70b") == find_values("llama-3.3-70b")


def test_a_file_whose_name_looks_like_a_tag_is_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(tmp_path / "llama3.1:8b", small("gpt2"))
    monkeypatch.chdir(tmp_path)
    assert (find_model("llama3.1:8b").model_type, find_model("llama3.1:8b").notes) == ("gpt2", ())


def test_presets_are_filtered_by_words_in_their_names() -> None:
    assert filter_presets("qwen3- b") == [name for name in presets() if name.startswith(("qwen3-", "qwen3."))]
    assert filter_presets("QWEN3-8B") == ["qwen3-8b"]
    assert filter_presets("zzyx") == []


GEMMA_3 = {"model_type": "gemma3", "vision_config": {"hidden_size": 1152}, "text_config": small("gemma3_text")}
LLAMA_4 = {"model_type": "llama4", "vision_config": {}, "audio_config": {}, "text_config": small("llama4_text")}


@pytest.mark.parametrize(
    ("values", "left_out"), [(GEMMA_3, "vision_config"), (LLAMA_4, "audio_config, vision_config")], ids=["gemma3", "llama4"]
)
def test_only_the_language_model_of_a_multimodal_config_is_counted_and_that_is_noted(
    values: dict[str, Any], left_out: str, tmp_path: Path
) -> None:
    model = find_model(str(written(tmp_path / "m.json", values)))
    alone = find_model(str(written(tmp_path / "alone.json", values["text_config"])))
    assert model.params == alone.params
    assert model.notes == (f"only the language model is counted, not {left_out}",)


def test_the_text_config_of_gemma_3_may_rely_on_defaults(tmp_path: Path) -> None:
    """google/gemma-3-4b-it states no vocabulary, heads or window pattern; the flattened preset does."""
    keys = ("hidden_size", "intermediate_size", "num_hidden_layers", "rope_scaling", "sliding_window")
    preset = values_of(presets()["gemma-3-4b"])
    text = {"model_type": "gemma3_text"} | {key: preset[key] for key in keys}
    file = written(tmp_path / "m.json", {"model_type": "gemma3", "text_config": text})
    assert find_model(str(file)).params == find_model("gemma-3-4b").params


def test_a_head_tied_outside_the_text_config_is_tied(tmp_path: Path) -> None:
    values = {"tie_word_embeddings": True, "text_config": small("llama")}
    model = find_model(str(written(tmp_path / "m.json", values)))
    assert (model.decoder.tied, model.notes) == (True, ("text_config is counted",))


def test_a_key_that_looks_like_markup_or_escapes_is_shown_as_it_is_written(tmp_path: Path) -> None:
    values = {"[/x]\x1b[2J_config": 1, "text_config": small("llama")}
    (note,) = find_model(str(written(tmp_path / "m.json", values))).notes
    assert note == r"only the language model is counted, not [/x]\x1b[2J_config"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "lama-3-70b",
            "unknown model 'lama-3-70b'; did you mean 'llama-3-70b'? (meshwise show models llama, or give a config.json",
        ),
        ("llama-3.1", "unknown model 'llama-3.1'; did you mean 'llama-3.1-8b', 'llama-3.1-70b' or 'llama-3.1-405b'?"),
        ("llama-3.3-70b:q4_k_m", "a weight format only applies to serving; write 'llama-3.3-70b' here"),
        (
            "zzyx-4.5-air",
            "unknown model 'zzyx-4.5-air': no preset has a similar name (meshwise show models); give its config.json, ",
        ),
        ("llama-of-another-make-entirely", "no preset has a similar name (meshwise show models llama); give its config.json, "),
        ("llama3.2:latest", "looks like an Ollama tag, but it states no size; did you mean 'llama-3.2-1b', 'llama-3.2-3b' or "),
        ("", "unknown model ''"),
        ("nowhere.json", "cannot read 'nowhere.json': No such file"),
        ("a/b/c", "unknown model 'a/b/c'"),
        ("/", "holds no config.json"),
        ("x" * 10_000, "unknown model 'xxx"),
        ("x" * 10_000 + ".json", "File name too long"),
        ("a\0b", "control characters"),
        ("a\0b.json", "control characters"),
        ("a\nb", "control characters"),
        ("a b/c d", "neither a file nor a Hugging Face id"),
        ("显卡", "unknown model '显卡'"),
    ],
)
def test_an_unknown_name_is_reported_in_one_line(name: str, words: str) -> None:
    assert words in refusal(name)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[1, 2]", "expected a table of keys as in HF's config.json, found [1, 2]"),
        (b'"llama"', "expected a table of keys"),
        (b"\xff\xfe{}", "not a text file (UTF-8)"),
        (b'{"a": ' + b"9" * 5000 + b"}", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
    ],
    ids=["empty", "cut", "list", "text", "bytes", "digits", "deep"],
)
def test_a_file_that_is_not_a_config_is_reported_in_one_line(content: bytes, words: str, tmp_path: Path) -> None:
    (tmp_path / "m.json").write_bytes(content)
    assert words in refusal(str(tmp_path / "m.json"))


# The hub. Its library reads its settings on import, so each of these tests starts a process.


def count(hub_id: str, hub_home: Path, **settings: str) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
    environment = kept | {"HF_HOME": str(hub_home), "HF_HUB_DISABLE_PROGRESS_BARS": "1"} | settings
    command = [sys.executable, "-c", "from meshwise.ui.cli.main import main; main()", "count", hub_id, "--json"]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def test_the_local_cache_of_the_hub_is_read_without_a_network(tmp_path: Path) -> None:
    repository = tmp_path / "hub" / "models--me--tiny"
    written(repository / "snapshots" / "abc123" / "config.json", small("llama"))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc123")
    done = count("me/tiny", tmp_path, HF_HUB_OFFLINE="1")
    assert done.stderr == ""
    (tally,) = json.loads(done.stdout)
    assert (tally["model"], tally["source"]) == ("me/tiny", "https://huggingface.co/me/tiny")


@pytest.mark.parametrize("settings", [{"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}], ids=["offline", "closed"])
def test_without_a_network_the_error_says_to_give_a_config_json(settings: dict[str, str], tmp_path: Path) -> None:
    done = count("me/tiny", tmp_path, **settings)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert "cannot look up me/tiny on the hub" in done.stderr
    assert "give its config.json instead" in done.stderr


class Hub(BaseHTTPRequestHandler):
    """As much of the hub as config.json needs: one repository that is open, one gated, no others."""

    content = json.dumps(small("llama")).encode()

    def do_HEAD(self) -> None:
        open_, gated = self.path.startswith("/me/tiny/"), self.path.startswith("/me/gated/")
        self.send_response(200 if open_ else 403 if gated else 404)
        if not open_:
            self.send_header("X-Error-Code", "GatedRepo" if gated else "RepoNotFound")
        self.send_header("ETag", '"1"')
        self.send_header("X-Repo-Commit", "0" * 40)
        self.send_header("Content-Length", str(len(self.content)))
        self.end_headers()

    def do_GET(self) -> None:
        self.do_HEAD()
        self.wfile.write(self.content)

    def log_message(self, format: str, *args: object) -> None:
        """Keep the test's output clean."""


@pytest.fixture(scope="module")
def endpoint() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Hub) as server:
        Thread(target=server.serve_forever).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_config_that_is_not_cached_is_downloaded_from_the_hub(endpoint: str, tmp_path: Path) -> None:
    done = count("me/tiny", tmp_path, HF_ENDPOINT=endpoint)
    (tally,) = json.loads(done.stdout)
    assert tally["model_type"] == "llama"


@pytest.mark.parametrize(
    ("hub_id", "words"),
    [
        ("me/gated", "me/gated is gated on the hub: log in with 'hf auth login', or give its config.json instead"),
        ("meta-llama/Meta-Llama-3-71B", "the hub has no meta-llama/Meta-Llama-3-71B with a config.json; did you mean"),
    ],
)
def test_a_refusal_by_the_hub_is_reported_in_one_line(hub_id: str, words: str, endpoint: str, tmp_path: Path) -> None:
    done = count(hub_id, tmp_path, HF_ENDPOINT=endpoint)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert words in done.stderr
