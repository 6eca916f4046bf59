"""Chat templates: the Jinja text of a tokenizer's files that writes a conversation, run in a sandbox."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

from meshwise.catalogue import files
from meshwise.errors import UserError
from meshwise.run import packages
from meshwise.run.text.bounds import TooLong, bounded

if TYPE_CHECKING:
    from jinja2 import Template as Compiled

MAX_TEMPLATE_CHARS = 1 << 20  # characters of a template, at most
MAX_SECONDS, MAX_BYTES = 5.0, 1 << 30  # CPU time and new memory of a template that writes one conversation, at most
MAX_EXPONENT = 1000  # exponents of a template, at most: a larger power is computed in one step that no limit on time can end
BEGIN, END = "\ue000", "\ue001"  # mark an answer in what a template with generation blocks writes; private characters of Unicode
SPECIAL = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")
Message = dict[str, Any]
Span = tuple[int, int]  # first character of an answer and the one after it


class TemplateError(Exception):
    """Why a template cannot write a conversation."""


@dataclass(frozen=True)
class ChatTemplate:
    """A chat template, and the special tokens that it names."""

    source: str
    where: str  # its file
    tokens: dict[str, str] = field(default_factory=dict[str, str])

    @cached_property
    def _compiled(self) -> "Compiled":
        packages.require("jinja2", f"the chat template of {self.where}")
        from jinja2 import TemplateError as JinjaError
        from jinja2 import nodes
        from jinja2.ext import Extension, loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        class Generation(Extension):
            """Marks what `{% generation %}` blocks write, which are the answers."""

            tags = {"generation"}  # noqa: RUF012

            def parse(self, parser: Any) -> Any:
                line = next(parser.stream).lineno
                body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
                return nodes.CallBlock(self.call_method("_marked"), [], [], body).set_lineno(line)

            def _marked(self, caller: Any) -> str:
                return f"{BEGIN}{caller()}{END}"

        class Bounded(ImmutableSandboxedEnvironment):
            """A sandbox that refuses large powers."""

            intercepted_binops = frozenset({"**"})

            def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
                if not isinstance(right, int | float) or abs(right) > MAX_EXPONENT:
                    raise ValueError(f"an exponent above {MAX_EXPONENT}")
                return super().call_binop(context, operator, left, right)

        # not optimized: constants would be multiplied while the template is compiled, and large powers too
        environment: Any = Bounded(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols], optimized=False)
        environment.filters["tojson"] = _to_json
        environment.globals |= {"raise_exception": _raise, "strftime_now": _now}
        try:
            return environment.from_string(self.source)
        except JinjaError as error:
            raise UserError(f"{self.where}: its chat template is not valid Jinja ({_first_line(error)})") from None

    def _text(self, messages: Sequence[Message], prompt: bool, more: dict[str, Any]) -> str:
        try:
            with bounded(MAX_SECONDS, MAX_BYTES):
                return self._compiled.render(messages=list(messages), add_generation_prompt=prompt, **(self.tokens | more))
        except UserError:
            raise
        except (TooLong, MemoryError):
            most = f"{MAX_SECONDS:g} s and {MAX_BYTES >> 30} GiB"
            raise TemplateError(f"the chat template of {self.where} takes more than {most} for one conversation") from None
        except Exception as error:  # a template may raise anything
            raise TemplateError(f"the chat template of {self.where} fails: {_first_line(error)}") from None

    def written(self, messages: Sequence[Message], more: dict[str, Any], answers: bool) -> tuple[str, list[Span]]:
        """Return a conversation as text and, if asked for, its answers; `more` holds other variables of the template, such as tools."""
        whole = self._text(messages, False, more)
        if BEGIN in whole:
            return _unmarked(whole)
        if not answers:
            return whole, []
        spans: list[Span] = []
        for number, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            before = self._text(messages[:number], True, more)
            after = whole if number == len(messages) - 1 else self._text(messages[: number + 1], False, more)
            if not whole.startswith(after) or not after.startswith(before):
                raise TemplateError(
                    f"the chat template of {self.where} writes a message differently once others follow it, "
                    f"so that answer {number + 1} cannot be told apart; use --train-on all"
                )
            spans.append((len(before), len(after)))
        return whole, spans


def _unmarked(text: str) -> tuple[str, list[Span]]:
    spans: list[Span] = []
    plain = ""
    for part in text.split(BEGIN):
        answer, marked, rest = part.partition(END)
        if marked:
            spans.append((len(plain), len(plain) + len(answer)))
        plain += answer + rest
    return plain, spans


def _to_json(value: Any, ensure_ascii: bool = False, indent: int | None = None, **_: Any) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)


def _now(form: str) -> str:
    return datetime.now().strftime(form)


def _raise(message: str) -> NoReturn:
    raise ValueError(message)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)[:160]


def find(folder: Path) -> ChatTemplate | None:
    """Return the chat template of a tokenizer's folder: chat_template.jinja, or that of tokenizer_config.json. None if it has none."""
    config = _config(folder / "tokenizer_config.json")
    tokens = {name: text for name in SPECIAL if (text := _content(config.get(name)))}
    file = folder / "chat_template.jinja"
    if file.is_file():
        return ChatTemplate(files.text_of(file, MAX_TEMPLATE_CHARS), str(file), tokens)
    given = config.get("chat_template")
    if isinstance(given, list):  # several, by name
        rows = [cast("dict[str, Any]", row) for row in cast("list[Any]", given) if isinstance(row, dict)]
        given = next((row.get("template") for row in rows if row.get("name") == "default"), None)
    if not isinstance(given, str):
        return None
    return ChatTemplate(given, str(folder / "tokenizer_config.json"), tokens)


def _config(path: Path) -> dict[str, Any]:
    try:
        values: object = json.loads(files.text_of(path))
    except (UserError, ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", values) if isinstance(values, dict) else {}


def _content(value: Any) -> str:
    value = cast("dict[str, Any]", value).get("content") if isinstance(value, dict) else value
    return value if isinstance(value, str) else ""
