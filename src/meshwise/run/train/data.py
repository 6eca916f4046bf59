"""The data of a run: conversations, other text or token files, checked against the model before any process starts, and tokenized."""

from dataclasses import replace
from pathlib import Path

from meshwise.errors import UserError
from meshwise.run.callbacks import Say
from meshwise.run.text import chat, corpus
from meshwise.run.text import tokenizer as tokenizers
from meshwise.run.text.chat import ChatCorpus
from meshwise.run.text.corpus import Corpus
from meshwise.run.train.ask import TrainRun
from meshwise.run.train.finetune import tokenizer_of
from meshwise.workers.trainer.contract.settings import Settings, TokenFile

Text = Corpus | ChatCorpus


def text_of(run: TrainRun, data: str, name: str, vocabulary: int, seq: int, pack: bool) -> Text | None:
    """Return the data of a run, checked against the model: conversations, other text, or None for the embedded text."""
    tokenizer = tokenizer_of(run)
    if data and not run.text_key:
        talk = chat.find(data, tokenizer, answers=run.train_on != "all", pack=pack, seq=seq)
        if talk:
            corpus.check_vocabulary(talk, name, vocabulary)
            return talk
    text = corpus.find(data, tokenizer, run.text_key, run.seed)
    if text:
        corpus.check_fits(text, name, vocabulary, seq)
    return text


def eval_text_of(run: TrainRun, name: str, vocabulary: int, seq: int) -> Text | None:
    """Return the text of the validation loss; None if there is none."""
    if not run.eval_data:
        return None
    try:
        # one conversation per sequence: the token between packed ones may differ from that of the data
        return text_of(run, run.eval_data, name, vocabulary, seq, pack=False)
    except UserError as error:
        raise UserError(str(error).replace("--data", "--eval-data")) from None


def tokenized(settings: Settings, text: Text | None, eval_text: Text | None, say: Say) -> Settings:
    """Return settings with token files to read; they are made where none are cached."""
    out, s = Path(settings.out), settings
    if isinstance(text, ChatCorpus):
        file, end = chat.tokenize(text, out, say)
        s = replace(s, data=(file,), document_end=end)
    elif text is not None:
        s = replace(s, data=corpus.tokenize(text, out, s.seq, say))
    return replace(s, eval_data=_tokenize_eval(s, eval_text, out, say)) if eval_text else s


def _tokenize_eval(s: Settings, text: Text, out: Path, say: Say) -> tuple[TokenFile, ...]:
    """Return the token files of the validation text, read with the tokenizer that was learned from the data, if one was."""
    learned = out / "tokenizer.json"
    if isinstance(text, ChatCorpus):
        files = (chat.tokenize(text, out, say)[0],)
    else:
        if text.tokenizer and text.tokenizer.unlearned and learned.is_file():
            text = replace(text, tokenizer=tokenizers.find(str(learned)))
        files = corpus.tokenize(text, out, s.seq, say)
    have = sum(file.windows(s.seq) for file in files)
    if have < s.batch:
        raise UserError(f"--eval-data {text.given} has {have} sequences of {s.seq}, fewer than a batch of {s.batch}")
    return files
