"""Python scripts as settings: the keyword arguments of calls whose values are literals, or names that were set to literals before."""

import ast
import re
from typing import Any, cast

from meshwise.errors import UserError
from meshwise.programs.bash.budget import spend
from meshwise.programs.read.flags import POSITIONAL
from meshwise.programs.source import Scalar, Setting, Source, Unknown

MAX_CHARS = 1 << 20
UNSLOTH = "FastLanguageModel"
"""The class whose calls a script is read for: their arguments are literals in every published notebook."""
CALLS = {
    **dict.fromkeys(("TrainingArguments", "Seq2SeqTrainingArguments", "SFTConfig", "GRPOConfig", "BitsAndBytesConfig"), ""),
    "DPOConfig": "", "KTOConfig": "", "RewardConfig": "", "LoraConfig": "lora_", "LLM": "--", "sglang.Engine": "--", "sgl.Engine": "--",
}  # fmt: skip
"""Other calls that a script is read for, and what stands before their arguments' names in launch files."""
VERBS = {"DPOConfig": "dpo", "KTOConfig": "kto", "RewardConfig": "reward"}  # what `trl VERB` says, by the class
LOADED = re.compile(r"(AutoModel\w*\.from_pretrained|\w+Trainer|LLM)$")  # calls whose first argument is a model
_CALLED = re.compile(rf"\b(?:{'|'.join(name.replace('.', r'[.]') for name in CALLS)}|{UNSLOTH})\b[.\w]*\(")


def reads(text: str) -> bool:
    """Return whether a script calls what is read."""
    return _CALLED.search(text) is not None


def script_of(text: str) -> str:
    """Return the server that a script starts inside itself; '' for another script."""
    engine = re.search(r"\b(?:(LLM)|(?:sgl|sglang)\.Engine)\(", text)
    if engine is None:
        return ""
    return ("trtllm-serve" if "tensorrt_llm" in text else "vllm") if engine[1] else "sglang"


def settings(source: Source) -> list[Setting]:
    """Return keyword arguments of calls, each as 'Name.call.argument'; nothing is run. UserError where it is no Python."""
    if len(source.text) > MAX_CHARS:
        raise UserError(f"{source.file}: more than {MAX_CHARS:,} characters; expected a training script")
    try:
        tree = ast.parse(source.text)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UserError(f"{source.file}: not readable as Python: {error}") from None
    known: dict[str, Any] = {}
    found: list[Setting] = []
    starts = [0]
    for line in source.text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node in ast.walk(tree):
        spend()
        if isinstance(node, ast.Assign) and len(node.targets) == 1 and isinstance(node.targets[0], ast.Name):
            name, value = node.targets[0].id, _value(node.value, known)
            several = name in known and known[name] != value
            known[name] = Unknown(name, f"{name} is set to several values") if several else value
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            found += _arguments(node, source, starts, known)
    return found


def _arguments(node: ast.Call, source: Source, starts: list[int], known: dict[str, Any]) -> list[Setting]:
    name = ast.unparse(node.func) if isinstance(node.func, ast.Name | ast.Attribute) else ""
    whole = "" if LOADED.match(name) and name.startswith("AutoModel") else f"{name}."
    start_of = CALLS.get(name, whole) if UNSLOTH not in source.text else f"{name}."
    made: list[Setting] = []
    words = [ast.keyword("model", node.args[0])] if LOADED.match(name) and node.args else []
    for one in [*words, *node.keywords] if name else ():
        value = one.value
        if one.arg is None or value.end_lineno is None or value.end_col_offset is None:
            continue
        start, end = starts[value.lineno - 1] + value.col_offset, starts[value.end_lineno - 1] + value.end_col_offset
        first = starts[value.lineno - 1]  # columns are bytes: only in ASCII they are characters
        span = source.span(start, end) if source.text.isascii() else source.span(first, first)
        key = start_of + one.arg.removeprefix(start_of)
        if start_of != "--" and one.arg == "model" and LOADED.match(name) and UNSLOTH not in source.text:
            key = "model_name_or_path"
        if key != "model_name_or_path" or isinstance(_value(value, known), str):
            made.append(Setting(key, _value(value, known), span))
    return [*made, Setting(POSITIONAL, VERBS[name], made[0].span)] if name in VERBS and made else made


def _value(node: ast.expr, known: dict[str, Any]) -> "Scalar | tuple[Scalar, ...] | Unknown":
    if isinstance(node, ast.Name) and node.id in known:
        return known[node.id]
    try:
        value: object = ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        text = ast.unparse(node)
        return Unknown(text[:80], f"{text[:80]} is known only when the script runs")
    if isinstance(value, list | tuple):
        return tuple(str(item) for item in cast(list[object], value))
    return value if isinstance(value, int | float | str | bool) or value is None else str(value)
