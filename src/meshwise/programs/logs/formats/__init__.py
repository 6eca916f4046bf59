"""audit.logs.formats: one module per log format, each found through the entry-point group `meshwise.logs`.

    csv.py jsonl.py markdown.py         tables and pages of any origin; meshwise's own measurement tables
    llamabench.py                       llama-bench: JSON, CSV and Markdown output
    megatron.py deepspeed.py hf.py      Megatron-LM and Megatron-DeepSpeed; DeepSpeed; HF Trainer
    nanotron.py torchtitan.py           nanotron; torchtitan
A module has `name`, `order`, `matches(head)` and `read(lines) -> Reading` (see ../detect.py), and the argument names that only its
program uses. A package of your own adds a format with an entry point in this group. Imports audit.logs. Imported by nothing but the loader.
"""
