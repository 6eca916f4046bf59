"""Images of containers, and the programs that they start by themselves."""

import re

IMAGES = (
    (re.compile(r"(?:^|/)vllm-openai|(?:^|/)vllm-(?:cpu|rocm|tpu)"), ("vllm", "serve")),
    (re.compile(r"(?:^|/)llama\.cpp:[\w.-]*server|(?:^|/)llama-server"), ("llama-server",)),
    (re.compile(r"(?:^|/)ollama/ollama"), ("ollama", "serve")),
)
"""Images whose entry point is a program: the arguments after them are its arguments."""


def entry_of(image: str) -> tuple[str, ...]:
    """Return the words that an image starts by itself; () for an image whose command is in its arguments."""
    return next((words for pattern, words in IMAGES if pattern.search(image)), ())
