"""Conversations out of records: messages, prompt and completion, or instruction, input and output; as text, with the answers in it."""

from dataclasses import dataclass
from typing import Any, cast

from meshwise.errors import UserError
from meshwise.run.text.documents import clean
from meshwise.run.text.template import ChatTemplate, Message, Span, TemplateError

MESSAGES, PROMPT, COMPLETION = "messages", "prompt", "completion"
INSTRUCTION, INPUT, OUTPUT = "instruction", "input", "output"
EXPECTED_KEYS = f"{MESSAGES} (role, content), {PROMPT} and {COMPLETION}, or {INSTRUCTION}, {INPUT} and {OUTPUT}"


@dataclass(frozen=True)
class Conversation:
    """The text of a conversation, and its answers."""

    text: str
    answers: tuple[Span, ...]
    ends: bool  # whether the token that ends a document follows the text, as part of the last answer; a template writes its own


def is_conversation(record: dict[str, Any]) -> bool:
    """Return whether a record has the keys of a conversation."""
    return any({*keys} <= record.keys() for keys in ((MESSAGES,), (PROMPT, COMPLETION), (INSTRUCTION, OUTPUT)))


def read(record: dict[str, Any], template: ChatTemplate | None, answers: bool, where: str) -> Conversation:
    """Return a record as text, with its answers if asked for. UserError, which names `where`, for one without an answer."""
    if not is_conversation(record):
        raise UserError(f"{where}: expected {EXPECTED_KEYS}; it has {', '.join(map(str, record))[:200] or 'no keys'}")
    if MESSAGES in record:
        return _templated(_messages(record[MESSAGES], where), template, answers, record, where)
    if PROMPT in record:
        prompt, completion = record[PROMPT], record[COMPLETION]
        if isinstance(prompt, str) and isinstance(completion, str):
            return _plain(prompt, completion, where)
        return _templated([*_messages(prompt, where), *_messages(completion, where)], template, answers, record, where)
    asked, given, answer = (record.get(key) or "" for key in (INSTRUCTION, INPUT, OUTPUT))
    if not all(isinstance(part, str) for part in (asked, given, answer)):
        raise UserError(f"{where}: {INSTRUCTION}, {INPUT} and {OUTPUT} must be text")
    request = f"{asked}\n\n{given}" if given else cast(str, asked)
    if template is None:
        return _plain(f"{request}\n\n", cast(str, answer), where)
    messages = [{"role": "user", "content": request}, {"role": "assistant", "content": answer}]
    return _templated(_messages(messages, where), template, answers, record, where)


def _plain(prompt: str, completion: str, where: str) -> Conversation:
    prompt, completion = clean(prompt), clean(completion)
    if not completion.strip():
        raise UserError(f"{where}: it has no answer to train on: its {COMPLETION} or {OUTPUT} is empty")
    return Conversation(prompt + completion, ((len(prompt), len(prompt) + len(completion)),), ends=True)


def _messages(value: Any, where: str) -> list[Message]:
    rows: list[Any] = cast("list[Any]", value) if isinstance(value, list) else []
    messages = [cast(Message, row) for row in rows if isinstance(row, dict)]
    if not rows or len(messages) < len(rows) or not all(isinstance(message.get("role"), str) for message in messages):
        raise UserError(f"{where}: {MESSAGES} must be a list of objects with role and content")
    return [message | {"content": _content(message.get("content"), where)} for message in messages]


def _content(value: Any, where: str) -> str:
    """Return the text of a message; of one in parts, those of text."""
    if value is None:  # a call of a tool has no text
        return ""
    if isinstance(value, str):
        return clean(value)
    parts: list[Any] = cast("list[Any]", value) if isinstance(value, list) else [None]
    texts = [cast("dict[str, Any]", part).get("text") for part in parts if isinstance(part, dict)]
    if len(texts) < len(parts) or not all(isinstance(text, str) for text in texts):
        raise UserError(f"{where}: the content of a message must be text")
    return clean("".join(cast("list[str]", texts)))


def _templated(
    messages: list[Message], template: ChatTemplate | None, answers: bool, record: dict[str, Any], where: str
) -> Conversation:
    if template is None:
        raise UserError(
            f"{where}: {MESSAGES} need a chat template, in tokenizer_config.json or chat_template.jinja of the tokenizer's folder; "
            f"give that folder with --tokenizer, or use {PROMPT} and {COMPLETION}"
        )
    if not any(message["role"] == "assistant" for message in messages):
        raise UserError(f"{where}: it has no answer to train on: no message has the role assistant")
    more = {key: record[key] for key in ("tools", "documents") if record.get(key)}
    try:
        text, spans = template.written(messages, more, answers)
    except TemplateError as error:
        raise UserError(f"{where}: {error}") from None
    return Conversation(text, tuple(spans), ends=False)
