"""The data of a run: conversations, other text or token files, checked against the model before any process starts."""

from meshwise.errors import UserError
from meshwise.run.text import chat, corpus
from meshwise.run.text.chat import ChatCorpus
from meshwise.run.train.ask import TrainRun
from meshwise.run.train.finetune import tokenizer_of


def text_of(run: TrainRun, data: str, name: str, vocabulary: int, seq: int, pack: bool) -> "corpus.Corpus | ChatCorpus | None":
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


def hides(text: "corpus.Corpus | ChatCorpus | None") -> bool:
    """Return whether some tokens of a text have no loss."""
    return isinstance(text, ChatCorpus) or (text is not None and any(info.hides for info in text.ready))


def eval_text_of(run: TrainRun, name: str, vocabulary: int, seq: int) -> "corpus.Corpus | ChatCorpus | None":
    """Return the text of the validation loss; None if there is none."""
    if not run.eval_data:
        return None
    try:
        # one conversation per sequence: the token between packed ones may differ from that of the data
        return text_of(run, run.eval_data, name, vocabulary, seq, pack=False)
    except UserError as error:
        raise UserError(str(error).replace("--data", "--eval-data")) from None
