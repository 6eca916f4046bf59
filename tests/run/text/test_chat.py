"""Conversations become rows of tokens in which only answers have a loss."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from meshwise.errors import UserError
from meshwise.run.text import chat, template, tokens
from meshwise.run.text.rows import Counts, lay_out
from meshwise.run.text.template import ChatTemplate, TemplateError, find
from meshwise.workers.trainer.contract.settings import HIDDEN_TOKEN_BIT
from support.command import one_line

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
MARKED = (
    "{{ bos_token }}{% for message in messages %}{% if message.role == 'assistant' %}"
    "{% generation %}{{ message.content }}{{ eos_token }}{% endgeneration %}{% else %}[{{ message.content }}]{% endif %}{% endfor %}"
)
TALK = [
    {"role": "system", "content": "be short"},
    {"role": "user", "content": "two plus two?"},
    {"role": "assistant", "content": "four"},
    {"role": "user", "content": "and one?"},
    {"role": "assistant", "content": "five"},
]


def written(folder: Path, *records: dict[str, Any]) -> str:
    path = folder / "chat.jsonl"
    path.write_text("\n".join(map(json.dumps, records)))
    return str(path)


def tokenizer(folder: Path, template: str = CHATML) -> str:
    """A tokenizer of bytes in HF's format, with a chat template."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    library = Tokenizer(models.BPE({letter: i for i, letter in enumerate(alphabet)}, []))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    library.add_special_tokens(["<|im_start|>", "<|im_end|>", "<s>", "</s>"])
    folder.mkdir(exist_ok=True)
    library.save(str(folder / "tokenizer.json"))
    config = {"chat_template": template, "bos_token": "<s>", "eos_token": {"content": "</s>"}}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return str(folder)


def rows_of(data: str, given: str, out: Path, **options: Any) -> tuple[np.ndarray[Any, Any], int]:
    found = chat.find(data, given, **({"answers": True, "pack": False, "seq": 128} | options))
    assert found is not None
    out.mkdir(exist_ok=True)
    file, filler = chat.tokenize(found, out, print)
    assert tokens.read(Path(file.path)).hides
    stored = np.memmap(file.path, "<u4", "r", file.offset, (file.count,))
    return np.array(stored), filler


def trained_text(stored: np.ndarray[Any, Any], library: Any) -> str:
    return library.decode([int(token) for token in stored if token < HIDDEN_TOKEN_BIT], skip_special_tokens=False)


def test_only_the_messages_of_the_assistant_have_a_loss(tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    folder = tokenizer(tmp_path / "tokenizer")
    library = Tokenizer.from_file(f"{folder}/tokenizer.json")
    data = written(tmp_path, {"messages": TALK}, {"prompt": TALK[:2], "completion": TALK[2:3]})
    stored, filler = rows_of(data, folder, tmp_path / "out", seq=192)
    assert len(stored) == 2 * 192 + 1
    assert trained_text(stored, library) == "four<|im_end|>\nfive<|im_end|>\nfour<|im_end|>\n"
    whole = [int(token % HIDDEN_TOKEN_BIT) for token in stored[:192]]
    assert library.decode(whole[: whole.index(filler)], skip_special_tokens=False).startswith(
        "<|im_start|>system\nbe short<|im_end|>"
    )
    everything, _ = rows_of(data, folder, tmp_path / "out", seq=192, answers=False)
    assert "two plus two?" in trained_text(everything, library)


def test_generation_blocks_of_a_template_are_the_answers(tmp_path: Path) -> None:
    from tokenizers import Tokenizer

    folder = tokenizer(tmp_path / "tokenizer", MARKED)
    stored, _ = rows_of(written(tmp_path, {"messages": TALK}), folder, tmp_path / "out")
    library = Tokenizer.from_file(f"{folder}/tokenizer.json")
    assert trained_text(stored, library) == "four</s>five</s>"


def test_prompts_and_instructions_are_hidden_and_the_end_is_learned(tmp_path: Path) -> None:
    records = {"prompt": "ask: ", "completion": "answer"}, {"instruction": "say", "input": "hello", "output": "hëllo"}
    stored, _ = rows_of(written(tmp_path, *records), "bytes", tmp_path / "out")
    assert bytes(int(token) for token in stored if token < HIDDEN_TOKEN_BIT) == b"answer\0" + "hëllo".encode() + b"\0"
    assert bytes(int(token % HIDDEN_TOKEN_BIT) for token in stored[128:140]) == b"say\n\nhello\n\n"


def test_tokens_are_reused_until_something_changes(tmp_path: Path) -> None:
    data, said = written(tmp_path, {"prompt": "a", "completion": "b"}), list[str]()
    for seq in (64, 64, 32):
        found = chat.find(data, "bytes", answers=True, pack=False, seq=seq)
        assert found is not None
        chat.tokenize(found, tmp_path / "out", said.append)
    assert ["tokenized before" in line for line in said if "sequences" in line] == [False, True, False]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(2, 40), min_size=1, max_size=60), st.integers(2, 24), st.booleans())
def test_every_conversation_is_in_one_row_and_its_first_token_hidden(lengths: list[int], seq: int, pack: bool) -> None:
    conversations = [np.arange(length, dtype=np.uint32) + 100 * (number + 1) for number, length in enumerate(lengths)]
    counts = Counts()
    rows = list(lay_out(conversations, seq, pack, 7, counts))
    assert all(len(row) == seq for row in rows)
    assert counts.rows == len(rows) <= len(lengths)
    found: dict[int, list[int]] = {}
    for row in rows:
        inside: list[int] = []
        for token in row.tolist():
            if token % HIDDEN_TOKEN_BIT == 7:
                assert token >= HIDDEN_TOKEN_BIT
            else:
                inside.append(token)
                found.setdefault(token % HIDDEN_TOKEN_BIT // 100, []).append(token)
        owners = [token % HIDDEN_TOKEN_BIT // 100 for token in inside]
        assert owners == sorted(owners, key=owners.index)  # a conversation is not interrupted
        assert pack or len(set(owners)) == 1
    for number, length in enumerate(lengths):
        expected = conversations[number][:seq].tolist()
        assert found[number + 1] == [expected[0] + HIDDEN_TOKEN_BIT, *expected[1:]], length
    assert counts.cut == sum(length > seq for length in lengths)


@pytest.mark.parametrize(
    ("record", "says"),
    [
        ({"messages": TALK[:2]}, "it has no answer to train on: no message has the role assistant"),
        ({"messages": []}, "messages must be a list of objects with role and content"),
        ({"messages": [{"role": "user", "content": 3}]}, "the content of a message must be text"),
        ({"prompt": "a", "completion": " "}, "it has no answer to train on"),
        ({"instruction": "a", "output": ["b"]}, "must be text"),
    ],
)
def test_data_without_answers_is_refused_with_its_line(record: dict[str, Any], says: str, tmp_path: Path) -> None:
    good = {"prompt": "a", "completion": "b"}
    data = written(tmp_path, good, record)
    with pytest.raises(UserError, match=r"line 2: .*") as error:
        chat.find(data, tokenizer(tmp_path / "tokenizer"), answers=True, pack=False, seq=64)
    assert says in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / ".meshwise").exists()


@pytest.mark.parametrize(
    ("template", "says"),
    [
        ("{{ raise_exception('roles must alternate') }}", "fails: roles must alternate"),
        ("{% if %}", "is not valid Jinja"),
        ("{{ messages[0].nothing.more }}", "fails: "),
        ("{{ ''.__class__.__mro__ }}", "fails: "),
        ("{{ messages | length }}{% for m in messages %}{{ m.content }}{% endfor %}", "use --train-on all"),
    ],
)
def test_a_template_that_fails_is_refused_in_one_line(template: str, says: str, tmp_path: Path) -> None:
    data = written(tmp_path, {"messages": TALK})
    with pytest.raises(UserError) as error:
        chat.find(data, tokenizer(tmp_path / "tokenizer", template), answers=True, pack=False, seq=64)
    assert says in str(error.value)
    assert "\n" not in str(error.value)


def test_messages_need_a_template(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="need a chat template"):
        chat.find(written(tmp_path, {"messages": TALK}), "bytes", answers=True, pack=False, seq=64)


def test_a_sequence_that_ends_before_every_answer_is_refused(tmp_path: Path) -> None:
    found = chat.find(written(tmp_path, {"prompt": "long " * 20, "completion": "b"}), "bytes", answers=True, pack=False, seq=16)
    assert found is not None
    with pytest.raises(UserError, match="no answer begins within the first 16 tokens"):
        chat.tokenize(found, tmp_path / "out", print)
    assert not list((tmp_path / ".meshwise").glob("*"))


def test_a_sequence_longer_than_all_conversations_is_refused_where_they_share_it(tmp_path: Path) -> None:
    data, said = written(tmp_path, {"prompt": "a", "completion": "bc"}), list[str]()
    found = chat.find(data, "bytes", answers=True, pack=True, seq=16)
    assert found is not None
    with pytest.raises(UserError, match="has 4 tokens in all, fewer than a sequence of 16: use --seq 4"):
        chat.tokenize(found, tmp_path / "out", said.append)
    alone = chat.find(data, "bytes", answers=True, pack=False, seq=16)
    assert alone is not None
    chat.tokenize(alone, tmp_path / "out", said.append)
    assert "the longest conversation has 4 tokens" in said[-1]


def test_text_and_token_files_are_no_conversations(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    assert chat.find(str(tmp_path / "a.txt"), "", answers=True, pack=False, seq=8) is None
    assert chat.find(written(tmp_path, {"text": "plain"}), "", answers=True, pack=False, seq=8) is None


def test_a_template_of_its_own_file_comes_first(tmp_path: Path) -> None:
    tokenizer(tmp_path)
    (tmp_path / "chat_template.jinja").write_text(MARKED)
    found = find(tmp_path)
    assert found is not None
    assert found.written(TALK, {}, True)[0].startswith("<s>[be short]")
    with pytest.raises(TemplateError):
        ChatTemplate("{{ 1 / 0 }}", "here").written(TALK, {}, True)


@pytest.mark.parametrize("source", [
    "{% for a in range(99999) %}{% for b in range(99999) %}{% set c = a * b %}{% endfor %}{% endfor %}",
    "{{ 'a' * 9999999999 }}", "{{ 'a'.ljust(9999999999) }}", "{{ ('a' * 99999).replace('a', 'b' * 99999) }}",
    "{{ '%9999999999d' % 1 }}", "{{ 10 ** 999999999 }}", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
])  # fmt: skip
def test_a_template_that_takes_endless_time_or_memory_is_refused(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template, "MAX_SECONDS", 0.3)
    made = ChatTemplate(source, "chat_template.jinja")
    with pytest.raises(TemplateError) as refused:
        made.written(TALK, {}, answers=False)
    assert one_line(refused.value).startswith("the chat template of chat_template.jinja ")
    assert ChatTemplate("{{ 2 ** 3 }}", "a").written(TALK, {}, answers=False) == ("8", [])
