"""Mutated inputs: valid files with bytes, numbers, lines and members of JSON changed at random."""

import gzip
import json
import random
from collections.abc import Callable
from typing import Any, cast

DIGITS = b"9" * 400
WORDS: list[bytes] = [
    b"", b"0", b"-1", b"1e308", b"1e400", b"-1e400", b"NaN", b"Infinity", b"null", b"true", b'"x"', b"[]", b"{}", DIGITS, b"-" + DIGITS,
    b"1" * 5000, b"0.5", b"18446744073709551616", b"9223372036854775807", b"\xff\xfe", b"\0", b"\x1b[2J", b"\r", b"\n\n", b'"', b",", b":",
    b"\\ud800", "\u0663".encode(), "\u202e".encode(), b"[" * 3000, b'{"a":' * 1500, b"../../../etc/passwd", b"x" * 5000, b"%s%n", b"=1+1",
]  # fmt: skip
VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 2, 0.5, -0.0, 1e308, float("nan"), float("inf"), 10**400, -(10**400), 2**31, 2**53, 2**63, 2**64, "", "x",
    "9" * 400, "\ud800", "\x1b[2J", "a\nb", "../x", "/dev/zero", [], {}, [[]], [None], {"a": {}}, ["x", 1], "llama", "h100-sxm", "1e400",
    "\u0663",
]  # fmt: skip
PIECES: list[bytes] = [
    b"$(touch OWNED)", b"`id`", b"$(cat /etc/passwd)", b"$(< /etc/passwd)", b"\nsource /etc/passwd\n", b"\n. ../secret.sh\n",
    b"\neval $X\n",
    b"\nexec 3<>/dev/tcp/127.0.0.1/9\n", b"\ncat < /etc/hosts | sh\n", b"\nexport PATH=/tmp:$PATH\n", b"\nwhile true; do :; done\n",
    b"\nfor i in {1..99999}; do X=$X$i; done\n", b"$((1<<99999))", b"$((9**9**9))", b"${X:-", b"${A[@]}", b"${A//a*a*a*b/c}", b"<<EOF\n",
    b"{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}{a,b}", b"!!python/object/apply:os.system ['touch OWNED']", b"!include /etc/passwd", b"&a [*a]",
    b"<<: *a", b"&b [*b, *b, *b]", b"\n---\n", b"\ndeepspeed: /etc/passwd\n", b"\nenv_file: ../secret.env\n",
    b"\nextends: {file: /etc/passwd}\n",
    b" --config ../secret.yaml ", b" --deepspeed /etc/passwd ", b" --model /proc/self ", b" --model-path ~/.ssh ", b" @/etc/passwd ",
    b"\nFROM ../../secret\n", b"\nADAPTER /dev/zero\n", b"file:///etc/passwd", b"http://127.0.0.1:9/x", b"/dev/stdin", b"/dev/zero",
    b"--tensor-model-parallel-size 0 ", b"--micro-batch-size=-3 ", b"--num-layers 999999999999 ", b"[parallelism]\n", b"[[a]]\n",
    b"\ntp: [1, 2]\n",
    b"auto", b"null", b"e5", b"1:30:00", b"0x1F", b"\xef\xbb\xbf", b"\t", b"\\\n", b"'", b"|", b"&&", b"#",
    b"```bash\n", b"{{ .Values.x }}",
]  # fmt: skip
"""What a shell would run, a reader would follow, or a parser would expand."""
Mutation = Callable[[random.Random, bytes], bytes]


def _flip(rng: random.Random, data: bytes) -> bytes:
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 8))):
        changed[rng.randrange(len(changed))] ^= 1 << rng.randrange(8)
    return bytes(changed)


def _cut(rng: random.Random, data: bytes) -> bytes:
    return data[: rng.randrange(len(data))]


def _remove(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data))
    return data[:at] + data[at + rng.choice((1, 4, 16, 64)) :]


def _insert(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.choice(WORDS) + data[at:]


def _insert_piece(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.choice(PIECES) + data[at:]


def _replace_number(rng: random.Random, data: bytes) -> bytes:
    """Replace one run of digits by another word."""
    ends = [i for i in range(len(data)) if data[i : i + 1].isdigit() and not data[i - 1 : i].isdigit()]
    if not ends:
        return _insert(rng, data)
    begin = end = rng.choice(ends)
    while data[end : end + 1].isdigit() or data[end : end + 1] == b".":
        end += 1
    return data[:begin] + rng.choice(WORDS) + data[end:]


def _repeat(rng: random.Random, data: bytes) -> bytes:
    a, b = sorted(rng.randrange(len(data) + 1) for _ in range(2))
    return data[:b] + data[a:b][:2000] * rng.choice((1, 2, 20)) + data[b:]


def _swap_lines(rng: random.Random, data: bytes) -> bytes:
    lines = data.split(b"\n")
    i, j = rng.randrange(len(lines)), rng.randrange(len(lines))
    lines[i], lines[j] = lines[j], lines[i]
    return b"\n".join(lines)


def _change_member(rng: random.Random, data: bytes) -> bytes:
    """Replace, remove or rename one member of a JSON text, or of one of its lines."""
    lines = data.split(b"\n")
    whole = len(lines) > 1 and lines[0].strip()[-1:] in (b"{", b"[", b"")
    at = rng.randrange(len(lines))
    try:
        values = json.loads(data if whole else lines[at])
    except (ValueError, RecursionError):
        return _replace_number(rng, data)
    places: list[tuple[Any, Any]] = []
    stack: list[Any] = [values]
    while stack:
        held = stack.pop()
        keys: Any = (
            list(cast(dict[str, Any], held)) if isinstance(held, dict) else range(len(held)) if isinstance(held, list) else ()
        )  # pyright: ignore[reportUnknownArgumentType]
        places += [(held, key) for key in keys]
        stack += [held[key] for key in keys]
    if not places:
        return _insert(rng, data)
    holder, key = rng.choice(places)
    action = rng.randrange(8)
    if action == 0 and isinstance(holder, dict):
        del holder[key]
    elif action == 1 and isinstance(holder, dict):
        holder[rng.choice(("", "x", "\ud800", "__class__", *map(str, holder)))] = holder[key]
    elif action == 2:
        holder[key] = rng.choice(places)[0]
        if any(holder is inner for inner in (holder[key],)) or _is_inside(holder, holder[key]):
            holder[key] = None
    else:
        holder[key] = rng.choice(VALUES)
    text = json.dumps(values).encode()
    return text if whole else b"\n".join([*lines[:at], text, *lines[at + 1 :]])


def _is_inside(inner: Any, outer: Any) -> bool:
    """Return whether `outer` holds `inner`: it would become a member of itself."""
    stack = [outer]
    while stack:
        held = stack.pop()
        if held is inner:
            return True
        stack += list(held.values()) if isinstance(held, dict) else held if isinstance(held, list) else []  # pyright: ignore[reportUnknownArgumentType]
    return False


BYTES: tuple[Mutation, ...] = (_flip, _flip, _cut, _remove, _insert, _repeat)
TEXT: tuple[Mutation, ...] = (_flip, _cut, _remove, _insert, _replace_number, _replace_number, _repeat, _swap_lines)
JSON: tuple[Mutation, ...] = (*TEXT, *(_change_member,) * 12)

LAUNCH: tuple[Mutation, ...] = (*TEXT, *(_insert_piece,) * 4)


def mutated(rng: random.Random, data: bytes, mutations: tuple[Mutation, ...]) -> bytes:
    """Return the data after one to four mutations."""
    packed = data[:2] == b"\x1f\x8b" and rng.random() < 0.5
    if packed:
        data = gzip.decompress(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        data = rng.choice(mutations)(rng, data) if data else rng.choice(WORDS)
    return gzip.compress(data) if packed else data
