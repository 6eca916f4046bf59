"""ChatCorpus: conversations of `--data`, checked before a run starts, and tokenized into rows of its sequence length."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from meshwise.catalogue.files import write
from meshwise.errors import UserError
from meshwise.run import packages
from meshwise.run.callbacks import Say
from meshwise.run.text import conversations, corpus, documents, template, tokens
from meshwise.run.text import tokenizer as tokenizers
from meshwise.run.text.conversations import Conversation
from meshwise.run.text.rows import Counts, lay_out
from meshwise.run.text.template import ChatTemplate
from meshwise.run.text.tokenizer import Tokenizer
from meshwise.workers.trainer.contract.settings import HIDDEN_TOKEN_BIT, TokenFile

if TYPE_CHECKING:
    import numpy as np

    Tokens = np.ndarray[Any, Any]

CHECKED_CONVERSATIONS = 200  # conversations that are read before a run starts; mistakes usually show in the first
CONVERSATIONS_AT_ONCE = 1000  # conversations that a tokenizer gets at once, to divide over the cores


@dataclass(frozen=True)
class ChatCorpus:
    """Files of conversations, and how they become tokens."""

    given: str
    files: tuple[Path, ...]
    tokenizer: Tokenizer
    template: ChatTemplate | None
    answers: bool  # whether only answers have a loss
    pack: bool
    seq: int
    chats: ClassVar[bool] = True
    hides: ClassVar[bool] = True  # whether some tokens have no loss
    document_end: ClassVar[int] = -1  # not known before it is tokenized

    @property
    def size(self) -> int:
        return self.tokenizer.size

    @property
    def description(self) -> str:
        return f"{self.given}, tokenizer {self.tokenizer.name}"

    @property
    def has_tokenizer_file(self) -> bool:
        """Whether the run's folder gets a tokenizer.json."""
        return bool(self.tokenizer.source)

    @property
    def key(self) -> str:
        """What, besides files and tokenizer, determines the tokens."""
        written = self.template.source + repr(sorted(self.template.tokens.items())) if self.template else ""
        return hashlib.sha256(f"chat:{self.answers}:{self.pack}:{self.seq}:{written}".encode()).hexdigest()

    def conversations(self) -> Iterator[Conversation]:
        """Yield all conversations."""
        for path in self.files:
            for number, record in documents.records(path):
                yield conversations.read(record, self.template, self.answers, f"{path}, line {number}")


def find(data: str, tokenizer: str, *, answers: bool, pack: bool, seq: int) -> ChatCorpus | None:
    """Return the conversations of `--data`; None if its files are no conversations."""
    files = tuple(documents.files(data, corpus.SUFFIXES)) if data else ()
    if not files or documents.kind_of(files[0]) not in documents.KEYED:
        return None
    first = next(documents.records(files[0]), None)
    if first is None or not conversations.is_conversation(first[1]):
        return None
    other = next((path for path in files if documents.kind_of(path) not in documents.KEYED), None)
    if other is not None:
        raise UserError(f"--data {data}: {other.name} holds no conversations, as {files[0].name} does; choose one kind")
    if tokenizer.startswith("bpe:"):
        raise UserError(f"--tokenizer {tokenizer} is learned from text, not from conversations: give the model's own tokenizer")
    if tokenizer not in ("", "bytes"):
        packages.require("tokenizers", f"--tokenizer {tokenizer}")
    found = tokenizers.find(tokenizer)
    folder = Path(tokenizer) if Path(tokenizer).is_dir() else Path(tokenizer).parent
    chat = ChatCorpus(data, files, found, template.find(folder) if found.source else None, answers, pack, seq)
    for _ in islice(chat.conversations(), CHECKED_CONVERSATIONS):
        pass
    return chat


def tokenize(chat: ChatCorpus, out: Path, say: Say) -> tuple[TokenFile, int]:
    """Return the token file of conversations, cached or new, and the token that fills rows up and ends documents."""
    if chat.tokenizer.source:
        write(out / "tokenizer.json", chat.tokenizer.source)
    digest = corpus.digest_of(chat.files, chat.tokenizer.key, chat.key)
    folders = corpus.cache_folders(chat.given, chat.files, out)
    name = f"{corpus.stem(chat.given, chat.files)}-{digest.hex()[:16]}.tokens"
    for folder in folders:
        if (folder / name).is_file() and corpus.cached(folder / name, digest):
            info = tokens.read(folder / name)
            say(f"{chat.description}: {info.file.windows(chat.seq):,} sequences of {chat.seq}, tokenized before")
            return info.file, info.end
    home = corpus.writable(folders)
    say(f"tokenizing {chat.description}; its tokens are kept in {home}")
    info = _write(chat, home / name, digest, say)
    return info.file, info.end


def _write(chat: ChatCorpus, path: Path, digest: bytes, say: Say) -> tokens.TokenFileInfo:
    import numpy as np

    every = list(_encoded(chat))
    longest, total = max(map(len, every), default=0), sum(map(len, every))
    if chat.pack and total < chat.seq:
        raise UserError(
            f"{chat.description} has {total} tokens in all, fewer than a sequence of {chat.seq}: use --seq {max(2, total)}"
        )
    filler, counts = _unused(chat, every), Counts()
    with tokens.Writer(path, chat.tokenizer.size, filler, digest, hides=True) as writer:
        for row in lay_out(every, chat.seq, chat.pack, filler, counts):
            writer.add(row)
        writer.add(np.array([filler + HIDDEN_TOKEN_BIT], np.uint32))  # the token that follows the last row
        if not counts.rows:
            raise UserError(
                f"--data {chat.given}: no answer begins within the first {chat.seq} tokens of its conversation; use a longer --seq"
            )
    say(f"{chat.description}: {counts.text(chat.seq)}")
    if not chat.pack and 2 * longest <= chat.seq:
        say(f"the longest conversation has {longest} tokens: --seq {longest}, or --pack, trains on fewer that only fill up")
    return tokens.read(path)


def _unused(chat: ChatCorpus, every: "list[Tokens]") -> int:
    """Return the last token that no conversation has: it may end documents and fill rows up without any effect on the others."""
    import numpy as np

    used = np.zeros(chat.tokenizer.size, np.bool_)
    for tokens_of in every:
        used[tokens_of % HIDDEN_TOKEN_BIT] = True
    free = np.flatnonzero(~used)
    if not len(free):
        raise UserError(
            f"--data {chat.given} uses every token of {chat.tokenizer.name}, and none is left to separate conversations"
        )
    return int(free[-1])


def _encoded(chat: ChatCorpus) -> Iterator["Tokens"]:
    """Yield the tokens of each conversation; those without a loss have the bit HIDDEN_TOKEN_BIT."""
    import numpy as np

    encode, end = _encoder(chat.tokenizer), chat.tokenizer.end
    rows = chat.conversations()
    while group := list(islice(rows, CONVERSATIONS_AT_ONCE)):
        for conversation, (ids, starts) in zip(group, encode([each.text for each in group]), strict=True):
            hidden = np.full(len(ids), chat.answers)
            for first, last in conversation.answers if chat.answers else ():
                hidden[(starts >= first) & (starts < last)] = False
            found = ids + np.where(hidden, np.uint32(HIDDEN_TOKEN_BIT), np.uint32(0))
            if conversation.ends and end is not None:
                found = np.append(found, np.uint32(end))
            if len(found):
                yield found.astype(np.uint32)


Encode = Callable[[list[str]], "list[tuple[Tokens, Tokens]]"]


def _encoder(tokenizer: Tokenizer) -> Encode:
    """Return a function that encodes texts: the tokens of each, and the character at which each token begins."""
    import numpy as np

    def as_bytes(texts: list[str]) -> "list[tuple[Tokens, Tokens]]":
        pairs: list[tuple[Tokens, Tokens]] = []
        for text in texts:
            widths = [len(letter.encode()) for letter in text]
            pairs.append((np.frombuffer(text.encode(), np.uint8).astype(np.uint32), np.repeat(np.arange(len(text)), widths)))
        return pairs

    if not tokenizer.source:
        return as_bytes
    from tokenizers import Tokenizer as Library

    library = Library.from_str(tokenizer.source)
    library.no_truncation()
    library.no_padding()

    def as_library(texts: list[str]) -> "list[tuple[Tokens, Tokens]]":
        encodings = tokenizers.encoded(lambda: library.encode_batch(texts, add_special_tokens=False))
        return [(np.array(each.ids, np.uint32), np.array([start for start, _ in each.offsets], np.int64)) for each in encodings]

    return as_library
