"""Claims in sentences: rates, worked products, expansions of abbreviations, scaling efficiency, spread, a grade."""

import re
from collections.abc import Iterator

from meshwise.runs.numbers import parse_digits
from meshwise.runs.reading import Claim

COUNTS = {word: n for n, word in enumerate(["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"], 1)}
_NUMBER = r"\d[\d,]*(?:\.\d+)?(?:[eE]\d+)?"
_PER_SECOND = r"tok(?:en)?s?\s*(?:/\s*|per\s+)s(?:ec(?:onds?)?)?\b"
_RATE = re.compile(rf"({_NUMBER})\s*\+?\s*(prompt|prefill|generated|output|decode)?\s*{_PER_SECOND}", re.IGNORECASE)
_RATE_AFTER = re.compile(
    rf"\b(prompt|prefill|generated|output|decode)?\s*{_PER_SECOND}[^:.\d]{{0,20}}:\s*({_NUMBER})", re.IGNORECASE
)
_CARDS = re.compile(rf"\b(\d{{1,5}}|{'|'.join(COUNTS)})[ -](?:\w+ )?(?:gpus?|cards?|G\.P\.S)\b", re.IGNORECASE)
_MODEL = re.compile(r"\b(llama|qwen|mistral|mixtral|gemma|deepseek|phi|falcon|gpt)[- ]?(\d[\w.]*|[vr]\d)\b", re.IGNORECASE)
_FACTOR = rf"{_NUMBER}[kKMB]?(?:\s+(?!x\b)[A-Za-z]+)?"
_CHAIN = rf"{_FACTOR}(?:\s*[×*·]\s*{_FACTOR}|\s+x\s+{_FACTOR})+"
_WORKED = re.compile(rf"(?<![\w.*^/)\\-])({_CHAIN})\s*=\s*({_NUMBER})(?![\w*^/.]|\s*[*×/^+])")
_IN_BRACKETS = re.compile(rf"(?<![\w.,])({_NUMBER})\s+(?:[a-z]+\s+){{1,3}}\(({_CHAIN})\)", re.IGNORECASE)
_STANDS = re.compile(r"\b([A-Za-z]{2,6}?)s? (?:stands for|is short for|is an? abbreviation of) ((?:[A-Za-z][\w-]*[ ]?){1,4})")
_ARE = re.compile(r"\b([A-Za-z]{2,6})s are ([A-Za-z-]+ [A-Za-z-]+)")
_LONG_SHORT = re.compile(r"((?:[A-Z][\w-]+[ ]){1,4}?(?:[A-Z][\w-]+))[ ]?\(([A-Za-z]{2,6})\)")
_SHORT_LONG = re.compile(r"\b([A-Z]{2,6})[ ]\(((?:[A-Za-z][\w-]+[ ]?){2,5})\)")
_EFFICIENCY = re.compile(rf"({_NUMBER})\s*%\s*(?:weak |strong |linear |parallel )?scaling(?: efficiency)?", re.IGNORECASE)
_SPEEDUP = re.compile(
    rf"({_NUMBER})\s*[x×]\s*(?:the )?(?:throughput|speed-?up|speed|faster|performance)?\s*"
    rf"(?:with|on|from|for|using)\s*({_NUMBER})\s*[x×]\s*(?:the |as many )?(?:gpus?|devices|nodes)",
    re.IGNORECASE,
)
_GRADE = re.compile(r"\bGrade:?\s*([A-F][+-]?)(?=\W|$)(?:\s*\((\d+)/100\))?")
_SPREAD = re.compile(rf"±\s*({_NUMBER})\s*%[^.]{{0,20}}(?:across|between|over|variance)[^.]{{0,12}}\bgpus?", re.IGNORECASE)
MAX_PARAGRAPH_CHARS = 4000  # characters searched in one paragraph


def _value(text: str) -> float:
    scale = {"k": 1e3, "m": 1e6, "b": 1e9}.get(text[-1:].lower(), 1.0)
    return (parse_digits(text.rstrip("kKmMbB"), "") or 0.0) * scale


def _short(text: str) -> str:
    return " ".join(text.split())[:90]


def cards(text: str) -> float:
    """Return the number of GPUs that a paragraph mentions; NaN if it mentions none or several different numbers."""
    counts = {float(COUNTS.get(n.lower()) or n) for n in _CARDS.findall(text)}
    return counts.pop() if len(counts) == 1 else float("nan")


def model_in(text: str) -> str:
    """Return the first model name in a text, such as 'llama 3.3', or ''."""
    match = _MODEL.search(text)
    return f"{match[1]} {match[2].rstrip('.')}".lower() if match else ""


def claims(text: str, where: str, model: str) -> Iterator[Claim]:
    """Yield the claims in a paragraph; `model` is the last model that the document named."""
    text = text[:MAX_PARAGRAPH_CHARS]
    if "tok" in text.lower():
        yield from _rates(text, where, model_in(text) or model)
    if "=" in text or "(" in text:
        yield from _products(text, where)
    for pattern, short, long in ((_STANDS, 1, 2), (_LONG_SHORT, 2, 1), (_SHORT_LONG, 1, 2)):
        if (pattern is _STANDS and " for " not in text and " of " not in text) or (pattern is not _STANDS and "(" not in text):
            continue  # skip patterns that cannot match: each costs one pass over the paragraph
        for match in pattern.finditer(text):
            if pattern is not _STANDS and match[short][0].lower() != match[long][0].lower():
                continue  # '(efficient utilization)' after 'GPU' does not expand the abbreviation
            about = (match[short].lower(), match[long].strip().lower())
            yield Claim(kind="meaning", where=where, text=_short(match[0]), about=about)
    for match in _ARE.finditer(text) if "s are " in text else ():
        yield Claim(kind="meaning", where=where, text=_short(match[0]), about=(match[1].lower(), match[2].lower(), "are"))
    for match in _GRADE.finditer(text):
        yield Claim(kind="grade", where=where, text=_short(match[0]), about=(match[1],))
    if not any(character.isdigit() for character in text):
        return
    for match in _EFFICIENCY.finditer(text):
        yield Claim(kind="efficiency", where=where, text=_short(match[0]), values=(_value(match[1]) / 100,))
    for match in _SPEEDUP.finditer(text):
        yield Claim(kind="efficiency", where=where, text=_short(match[0]), values=(_value(match[1]), _value(match[2])))
    for match in _SPREAD.finditer(text):
        yield Claim(kind="spread", where=where, text=_short(match[0]), values=(_value(match[1]) / 100,))


def _rates(text: str, where: str, model: str) -> Iterator[Claim]:
    gpus = cards(text)
    rates = [(m, m[1], m[2]) for m in _RATE.finditer(text)] + [(m, m[2], m[1]) for m in _RATE_AFTER.finditer(text)]
    for match, value, token_kind in rates:
        kind = {"prompt": "prompt", "prefill": "prompt"}.get((token_kind or "").lower(), "decode" if token_kind else "")
        yield Claim(kind="rate", where=where, text=_short(match[0]), values=(_value(value), gpus), about=(model, kind))


def _products(text: str, where: str) -> Iterator[Claim]:
    for match in _WORKED.finditer(text):
        before = text[: match.start()].rstrip()[-1:]
        if before not in tuple("*/+-^×\\(="):
            yield Claim(kind="product", where=where, text=_short(match[0]), values=(_value(match[2]), *_factors(match[1])))
    for match in _IN_BRACKETS.finditer(text):
        yield Claim(kind="product", where=where, text=_short(match[0]), values=(_value(match[1]), *_factors(match[2])))


def _factors(chain: str) -> list[float]:
    matches = (re.match(rf"\s*({_NUMBER}[kKMB]?)", part) for part in re.split(r"[×*·]|\sx\s", chain))
    return [_value(match[1]) for match in matches if match]
