"""Corpus: the data of a run, checked before it starts, and tokenized into a file that later runs reuse."""

import hashlib
import os
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import ClassVar, Protocol

from meshwise.catalogue.files import write
from meshwise.errors import UserError
from meshwise.run import packages
from meshwise.run.callbacks import Say
from meshwise.run.text import documents, tokens
from meshwise.run.text import tokenizer as tokenizers
from meshwise.run.text.tokenizer import Tokenizer
from meshwise.workers.trainer.contract.files.grammar import sentence
from meshwise.workers.trainer.contract.settings import TokenFile

SUFFIXES = (*documents.TEXT, *documents.LINES, *documents.TABLES, *tokens.SUFFIXES)
CACHE = ".meshwise"  # folder next to a text that holds its tokens
EMBEDDED_BYTES = 4 << 20  # bytes of the embedded text that are read with a tokenizer
SENTENCES_PER_DOCUMENT = 64  # sentences per document of the embedded text
CHARS_AT_ONCE = 1 << 23  # approximate number of characters that a tokenizer gets at once, to divide over the cores

PROGRESS_SECONDS = 20.0  # seconds between progress lines


class Checked(Protocol):
    """The data of a run, of any kind."""

    @property
    def given(self) -> str: ...
    @property
    def files(self) -> tuple[Path, ...]: ...
    @property
    def tokenizer(self) -> Tokenizer | None: ...
    @property
    def key(self) -> str: ...
    @property
    def size(self) -> int: ...


@dataclass(frozen=True)
class Corpus:
    """Files (none for the embedded text), and the tokenizer that reads them (None if they hold tokens)."""

    given: str
    files: tuple[Path, ...]
    tokenizer: Tokenizer | None
    key: str
    seed: int
    ready: tuple[tokens.TokenFileInfo, ...] = ()
    chats: ClassVar[bool] = False  # whether it holds conversations

    @property
    def hides(self) -> bool:
        """Whether some tokens have no loss."""
        return any(info.hides for info in self.ready)

    @property
    def size(self) -> int:
        """The vocabulary size that it needs."""
        return self.tokenizer.size if self.tokenizer else max(file.size for file in self.ready)

    @property
    def document_end(self) -> int:
        """The token that ends a document; -1 if nothing states it, or files disagree."""
        ends = {self.tokenizer.end} if self.tokenizer else {info.end for info in self.ready}
        return next(iter(ends)) if len(ends) == 1 and None not in ends else -1  # pyright: ignore[reportReturnType]

    @property
    def description(self) -> str:
        """The files and the tokenizer by name."""
        name = self.given or "the embedded text"
        return f"{name}, tokenizer {self.tokenizer.name}" if self.tokenizer else name

    @property
    def has_tokenizer_file(self) -> bool:
        """Whether the run's folder gets a tokenizer.json."""
        return self.tokenizer is not None and bool(self.tokenizer.source or self.tokenizer.unlearned)

    def pieces(self) -> Iterator[documents.Piece]:
        """Yield the text of all documents."""
        if self.files:
            return (piece for path in self.files for piece in documents.pieces(path, self.key))
        return _embedded(self.seed)


def find(data: str, tokenizer: str, key: str, seed: int) -> Corpus | None:
    """Resolve `--data`, `--tokenizer` and `--text-key` and check them as far as that is quick. None: the embedded text as bytes."""
    if not data and not key and tokenizer in ("", "bytes"):
        return None
    files = tuple(documents.files(data, SUFFIXES)) if data else ()
    if key and not any(documents.kind_of(path) in documents.KEYED for path in files):
        raise UserError(f"--text-key {key} only applies to {', '.join(documents.KEYED)} files: drop it, or give one with --data")
    ready = tuple(tokens.read(path) for path in files if path.suffix in tokens.SUFFIXES)
    if ready:
        if len(ready) < len(files):
            raise UserError(f"--data {data}: it has both text and token files; choose one kind, such as '{data}/*.parquet'")
        if tokenizer:
            raise UserError(f"--data {data} already holds tokens: drop --tokenizer")
        return Corpus(data, files, None, "", seed, ready)
    if tokenizer not in ("", "bytes"):
        packages.require("tokenizers", f"--tokenizer {tokenizer}")
    corpus = Corpus(data, files, tokenizers.find(tokenizer), key or "text", seed)
    if all(path.stat().st_size == 0 for path in files) and files:
        raise UserError(f"--data {data}: it is empty")
    next(corpus.pieces(), None)  # a missing key, or bytes that are not text, usually show in the first line
    return corpus


def check_fits(corpus: Corpus, model: str, vocabulary: int, seq: int) -> None:
    """Refuse tokens outside of the model's vocabulary, and token files shorter than a sequence."""
    check_vocabulary(corpus, model, vocabulary)
    if corpus.ready:
        _check_length(corpus, tuple(info.file for info in corpus.ready), seq)


def check_vocabulary(corpus: "Checked", model: str, vocabulary: int) -> None:
    """Refuse tokens outside of the model's vocabulary."""
    if corpus.size > vocabulary:
        flag = f"--tokenizer {corpus.tokenizer.name}" if corpus.tokenizer else f"--data {corpus.given}"
        other = f", or --tokenizer bpe:{vocabulary}" if corpus.tokenizer and vocabulary > tokenizers.BYTE_TOKENS else ""
        raise UserError(
            f"{flag} has token ids up to {corpus.size - 1}, but {model} has a vocabulary of {vocabulary}: "
            f"use a model with at least {corpus.size}{other}"
        )


def _check_length(corpus: Corpus, files: tuple[TokenFile, ...], seq: int) -> None:
    """Refuse a text that is shorter than one sample."""
    longest = max(file.count for file in files)
    if longest <= seq:
        shorter = f"a longer text, or --seq {longest - 1}" if longest > 1 else "a longer text"
        raise UserError(
            f"{corpus.description} has {longest} tokens, fewer than a sequence of {seq} and the token after it: use {shorter}"
        )


def tokenize(corpus: Corpus, out: Path, seq: int, say: Say) -> tuple[TokenFile, ...]:
    """Return the token files of a corpus: its own, cached ones of an earlier run, or new ones. Copies an HF tokenizer into `out`."""
    files = tuple(info.file for info in corpus.ready)
    if corpus.tokenizer:
        files = (_token_file(corpus, corpus.tokenizer, out, say),)
        _check_length(corpus, files, seq)
    count, samples = sum(file.count for file in files), sum(file.windows(seq) for file in files)
    say(f"{corpus.description}: {count:,} tokens, {samples:,} sequences of {seq}")
    return files


def _token_file(corpus: Corpus, tokenizer: Tokenizer, out: Path, say: Say) -> TokenFile:
    """Return the cached tokens of a text, or tokenize it."""
    digest = digest_of(corpus.files, tokenizer.key, corpus.key, f"{corpus.seed}:{EMBEDDED_BYTES}")
    folders = cache_folders(corpus.given, corpus.files, out)
    name = f"{stem(corpus.given, corpus.files)}-{digest.hex()[:16]}"
    for folder in folders:
        before, learned = folder / f"{name}.tokens", folder / f"{name}.tokenizer.json"
        if (tokens_before := cached(before, digest)) and (not tokenizer.unlearned or learned.is_file()):
            if tokenizer.source or tokenizer.unlearned:
                write(out / "tokenizer.json", tokenizer.source or learned.read_bytes())
            return tokens_before
    home = writable(folders)
    if tokenizer.unlearned:
        say(f"learning {tokenizer.name} from {corpus.given or 'the embedded text'}")
        tokenizer = tokenizers.learn(tokenizer, corpus.pieces())
        write(home / f"{name}.tokenizer.json", tokenizer.source)
    if tokenizer.source:
        write(out / "tokenizer.json", tokenizer.source)
    say(f"tokenizing {corpus.description}; its tokens are kept in {home}")
    path = home / f"{name}.tokens"
    encode = tokenizers.encoder(tokenizer)
    with tokens.Writer(path, tokenizer.size, tokenizer.end, digest) as writer:
        reported = monotonic()
        for group in _groups(corpus.pieces()):
            writer.add(encode(group))
            if monotonic() - reported > PROGRESS_SECONDS:
                say(f"{writer.count:,} tokens so far")
                reported = monotonic()
    return tokens.read(path).file


def _groups(pieces: Iterable[documents.Piece]) -> Iterator[list[documents.Piece]]:
    """Group pieces to about CHARS_AT_ONCE characters."""
    group: list[documents.Piece] = []
    letters = 0
    for piece in pieces:
        group.append(piece)
        letters += len(piece[0]) + 1
        if letters >= CHARS_AT_ONCE:
            yield group
            group, letters = [], 0
    yield group


def digest_of(files: tuple[Path, ...], tokenizer: str, key: str, embedded: str = "") -> bytes:
    """Hash everything that determines the tokens: the tokenizer and the key, and name, size and time of every file."""
    parts = [tokenizer, key]
    parts += [f"{path.name}:{path.stat().st_size}:{path.stat().st_mtime_ns}" for path in files] or [embedded]
    return hashlib.sha256("\n".join(parts).encode()).digest()


def stem(given: str, files: tuple[Path, ...]) -> str:
    """Return the beginning of the name of a token file."""
    name = files[0].name if len(files) == 1 else Path(given).name
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in name)[:60].lstrip(".") or "embedded"


def cache_folders(given: str, files: tuple[Path, ...], out: Path) -> list[Path]:
    """Return the folders in which tokens may be kept: next to the text, so that any later run finds them; else in the run's folder."""
    if not files:
        return [out / "tokens"]
    folder = Path(given) if os.path.isdir(given) else files[0].parent
    return [folder / CACHE, out / "tokens"]


def writable(folders: list[Path]) -> Path:
    """Return the first folder that can be written."""
    for home in folders:
        try:
            home.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(home, os.W_OK):
            return home
    raise UserError(f"cannot write tokens: neither {' nor '.join(map(str, folders))} is writable")


def cached(path: Path, digest: bytes) -> TokenFile | None:
    """Return the token file of an earlier run if it is complete and made from the same text."""
    try:
        info = tokens.read(path)
    except UserError:
        return None
    return info.file if info.digest == digest else None


def _embedded(seed: int) -> Iterator[documents.Piece]:
    """Yield documents of the embedded text."""
    dice, done = random.Random(f"{seed}:text"), 0
    while done < EMBEDDED_BYTES:
        text = "".join(sentence(dice) for _ in range(SENTENCES_PER_DOCUMENT)).rstrip()
        done += len(text)
        yield text, True
