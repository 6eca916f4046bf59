"""For cog: the tables of docs/models/model-types.md, from architecture files (tests/models/test_every_type.py compares them)."""

from meshwise.models.families import stored
from meshwise.models.families.description import Types, describe

_KINDS = {
    "dense": "Decoders of attention and one feed-forward",
    "decoder": "Decoders with parts of their own",
    "moe": "Mixtures of experts",
    "mla": "Latent attention",
    "ssm": "State-space models and hybrids",
    "linear_attention": "Linear attention and hybrids",
    "conv": "Short convolutions",
    "encoder": "Encoders that transformers also builds as causal models",
}


def counted() -> None:
    """Print the types that are counted, by kind."""
    by_kind: dict[str, list[str]] = {}
    for kind in Types():
        description = describe(kind)
        if not description.refusal and "text" not in description.words and description.family != "tower":
            by_kind.setdefault(description.family, []).append(kind)
    total = sum(map(len, by_kind.values()))
    print(f"\n{total} types:\n\n| kind | types |\n| --- | --- |")
    for family, words in _KINDS.items():
        print(f"| {words} | {', '.join(f'`{kind}`' for kind in sorted(by_kind.pop(family)))} |")
    assert not by_kind, by_kind
    print()


def within() -> None:
    """Print the types with a language model within, and its type."""
    pairs = [(kind, describe(kind).words["text"]) for kind in Types() if "text" in describe(kind).words]
    print(f"\n{len(pairs)} types: {', '.join(f'`{kind}` ({text})' for kind, text in sorted(pairs))}.\n")


def towers() -> None:
    """Print the types of towers."""
    print(f"\n{', '.join(f'`{kind}`' for kind in sorted(Types()) if describe(kind).family == 'tower')}\n")


def refused() -> None:
    """Print the types that are refused, with the reason."""
    print("\n| type | why |\n| --- | --- |")
    for kind in sorted(kind for kind in Types() if describe(kind).refusal):
        print(f"| `{kind}` | {describe(kind).refusal} |")
    print()


def architectures() -> None:
    """Print llama.cpp's architectures."""
    every = [one for one in stored.every() if not one.requires]
    read = ", ".join(f"`{one.name}`" for one in every if one.readable)
    others = ", ".join(f"`{one.name}`" for one in every if not one.readable)
    print(f"\n{len(every)} architectures. Files of these are read: {read}.\n")
    print(f"Of these, tensors and bytes are known from a config.json, but files are only counted from their tensors: {others}.\n")
