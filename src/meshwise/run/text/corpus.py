"""Corpus: what a run reads, checked before it starts, and made into a token file that is kept and used again."""

import hashlib
import os
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from meshwise.catalogue.files import write
from meshwise.errors import UserError
from meshwise.run.text import documents, tokens
from meshwise.run.text import tokenizer as tokenizers
from meshwise.run.text.tokenizer import Tokenizer
from meshwise.workers.trainer.data.grammar import sentence
from meshwise.workers.trainer.settings import TokenFile

SUFFIXES = (*documents.TEXT, *documents.LINES, *documents.TABLES, *tokens.SUFFIXES)
BESIDE = ".meshwise"
"""The folder beside a text where its tokens are kept."""
EMBEDDED = 4 << 20
"""Bytes of the embedded text that are read with a tokenizer of one's own."""
SENTENCES = 64
"""Of a document of it."""
AT_ONCE = 1 << 23
"""Letters that a tokenizer is given at once, or a little more, to share out over the cores."""

EVERY = 20.0
"""Seconds between two signs of life."""


@dataclass(frozen=True)
class Corpus:
    """Files, none of them for the embedded text, and the tokenizer that reads them, none where they hold tokens."""

    given: str
    files: tuple[Path, ...]
    tokenizer: Tokenizer | None
    key: str
    seed: int
    ready: tuple[tokens.Found, ...] = ()

    @property
    def size(self) -> int:
        """The vocabulary that it needs."""
        return self.tokenizer.size if self.tokenizer else max(found.size for found in self.ready)

    @property
    def words(self) -> str:
        name = self.given or "the embedded text"
        return f"{name}, tokenizer {self.tokenizer.words}" if self.tokenizer else name

    @property
    def laid(self) -> bool:
        """Whether the run's folder gets a tokenizer.json."""
        return self.tokenizer is not None and bool(self.tokenizer.source or self.tokenizer.learned)

    def pieces(self) -> Iterator[documents.Piece]:
        if self.files:
            return (piece for path in self.files for piece in documents.pieces(path, self.key))
        return _embedded(self.seed)


def look(data: str, tokenizer: str, key: str, seed: int) -> Corpus | None:
    """What `--data`, `--tokenizer` and `--text-key` mean, checked as far as that is quick; None is the embedded text in bytes."""
    if not data and not key and tokenizer in ("", "bytes"):
        return None
    files = tuple(documents.files(data, SUFFIXES)) if data else ()
    if key and not any(documents.kind_of(path) in documents.KEYED for path in files):
        raise UserError(f"--text-key {key} is for {', '.join(documents.KEYED)}: leave it out, or give such a file with --data")
    ready = tuple(tokens.read(path) for path in files if path.suffix in tokens.SUFFIXES)
    if ready:
        if len(ready) < len(files):
            raise UserError(f"--data {data}: both text and tokens are in it; name one kind, such as '{data}/*.parquet'")
        if tokenizer:
            raise UserError(f"--data {data} holds tokens already: leave out --tokenizer")
        return Corpus(data, files, None, "", seed, ready)
    if tokenizer not in ("", "bytes"):
        documents.need("tokenizers", f"--tokenizer {tokenizer}")
    found = Corpus(data, files, tokenizers.find(tokenizer), key or "text", seed)
    if all(path.stat().st_size == 0 for path in files) and files:
        raise UserError(f"--data {data}: there is nothing in it")
    next(found.pieces(), None)  # a key that is not there, or bytes that are no text, are mostly so from the first line
    return found


def fits(corpus: Corpus, model: str, vocabulary: int, seq: int) -> None:
    """Refuse tokens that the model has not, and ready ones that are too few."""
    if corpus.size > vocabulary:
        what = f"--tokenizer {corpus.tokenizer.words}" if corpus.tokenizer else f"--data {corpus.given}"
        other = f", or --tokenizer bpe:{vocabulary}" if corpus.tokenizer and vocabulary > tokenizers.BYTES else ""
        raise UserError(
            f"{what} has tokens up to {corpus.size - 1}, and {model} a vocabulary of {vocabulary}: "
            f"take a model with at least {corpus.size}{other}"
        )
    if corpus.ready:
        _enough(corpus, tuple(found.file for found in corpus.ready), seq)


def _enough(corpus: Corpus, files: tuple[TokenFile, ...], seq: int) -> None:
    longest = max(file.count for file in files)
    if longest <= seq:
        shorter = f"a longer text, or --seq {longest - 1}" if longest > 1 else "a longer text"
        raise UserError(
            f"{corpus.words} has {longest} tokens, fewer than a sequence of {seq} and the token after it: give {shorter}"
        )


def tokenized(corpus: Corpus, out: Path, seq: int, say: Callable[[str], None]) -> tuple[TokenFile, ...]:
    """The token files of a corpus: its own, those kept from an earlier run, or new ones. A tokenizer of HF's is laid into `out`."""
    files = tuple(found.file for found in corpus.ready)
    if corpus.tokenizer:
        files = (_made(corpus, corpus.tokenizer, out, say),)
        _enough(corpus, files, seq)
    count, samples = sum(file.count for file in files), sum(file.windows(seq) for file in files)
    say(f"{corpus.words}: {count:,} tokens, {samples:,} sequences of {seq}")
    return files


def _made(corpus: Corpus, tokenizer: Tokenizer, out: Path, say: Callable[[str], None]) -> TokenFile:
    digest = _digest(corpus, tokenizer)
    homes = _homes(corpus, out)
    name = f"{_stem(corpus)}-{digest.hex()[:16]}"
    for home in homes:
        kept, learned = home / f"{name}.tokens", home / f"{name}.tokenizer.json"
        if (found := _kept(kept, digest)) and (not tokenizer.learned or learned.is_file()):
            if tokenizer.source or tokenizer.learned:
                write(out / "tokenizer.json", tokenizer.source or learned.read_bytes())
            return found
    home = _writable(homes)
    if tokenizer.learned:
        say(f"learning {tokenizer.words} from {corpus.given or 'the embedded text'}")
        tokenizer = tokenizers.learn(tokenizer, corpus.pieces())
        write(home / f"{name}.tokenizer.json", tokenizer.source)
    if tokenizer.source:
        write(out / "tokenizer.json", tokenizer.source)
    say(f"reading {corpus.words}; its tokens are kept in {home}")
    path = home / f"{name}.tokens"
    encode = tokenizers.encoder(tokenizer)
    with tokens.Writer(path, tokenizer.size, tokenizer.end, digest) as writer:
        told = monotonic()
        for some in _groups(corpus.pieces()):
            writer.add(encode(some))
            if monotonic() - told > EVERY:
                say(f"{writer.count:,} tokens so far")
                told = monotonic()
    return tokens.read(path).file


def _groups(pieces: Iterable[documents.Piece]) -> Iterator[list[documents.Piece]]:
    some: list[documents.Piece] = []
    letters = 0
    for piece in pieces:
        some.append(piece)
        letters += len(piece[0]) + 1
        if letters >= AT_ONCE:
            yield some
            some, letters = [], 0
    yield some


def _digest(corpus: Corpus, tokenizer: Tokenizer) -> bytes:
    """Of all that decides the tokens: the tokenizer, and name, size and time of every file."""
    parts = [tokenizer.key, corpus.key]
    parts += [f"{path.name}:{path.stat().st_size}:{path.stat().st_mtime_ns}" for path in corpus.files]
    parts += [] if corpus.files else [f"{corpus.seed}:{EMBEDDED}"]
    return hashlib.sha256("\n".join(parts).encode()).digest()


def _stem(corpus: Corpus) -> str:
    name = corpus.files[0].name if len(corpus.files) == 1 else Path(corpus.given).name
    return "".join(c if c.isalnum() or c in "-_." else "_" for c in name)[:60].lstrip(".") or "embedded"


def _homes(corpus: Corpus, out: Path) -> list[Path]:
    """Beside the text, so that the next run finds them wherever it writes; in the run's folder where that cannot be written."""
    if not corpus.files:
        return [out / "tokens"]
    folder = Path(corpus.given) if os.path.isdir(corpus.given) else corpus.files[0].parent
    return [folder / BESIDE, out / "tokens"]


def _writable(homes: list[Path]) -> Path:
    for home in homes:
        try:
            home.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(home, os.W_OK):
            return home
    raise UserError(f"neither {' nor '.join(map(str, homes))} can be written: the tokens have no place")


def _kept(path: Path, digest: bytes) -> TokenFile | None:
    """A token file of an earlier run, where it is whole and of the same text."""
    try:
        found = tokens.read(path)
    except UserError:
        return None
    return found.file if found.digest == digest else None


def _embedded(seed: int) -> Iterator[documents.Piece]:
    dice, done = random.Random(f"{seed}:text"), 0
    while done < EMBEDDED:
        text = "".join(sentence(dice) for _ in range(SENTENCES)).rstrip()
        done += len(text)
        yield text, True
