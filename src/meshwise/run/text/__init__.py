"""text: data files and tokenizers -> the token files that a training run reads.

corpus.py       Corpus: the data of `--data`, `--tokenizer` and `--text-key`, checked, and tokenized when the run starts
chat.py         ChatCorpus: conversations; conversations.py reads records, template.py writes them, rows.py lays out their tokens
bounds.py       time and memory of a template that somebody else wrote
documents.py    documents from .txt, .jsonl and .parquet files, in pieces that fit in memory
tokenizer.py    bytes, HF's tokenizer.json, or a byte-pair encoding learned from the text
tokens.py       token files: the format of meshwise, and those of nanoGPT, llm.c and Megatron
fingerprint.py  identify a text by its content, so that a resumed run reads the same samples; and frozen weights
"""
