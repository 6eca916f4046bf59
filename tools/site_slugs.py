"""Anchors of headings as GitHub makes them, so that links work on both."""

import re


def github(text: str, separator: str) -> str:
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", separator)
