"""The load of a serving question in words: what every speed, price and latency of its answer belongs to."""

from meshwise.plan.ask import ServeAsk


def load_words(ask: ServeAsk) -> str:
    """Return the load: users at a time, or requests per second."""
    if ask.rate:
        return f"{ask.rate:g} request{'' if ask.rate == 1 else 's'}/s{f' in bursts of {ask.burst:g}' if ask.burst != 1 else ''}"
    return f"{ask.users:,} users at a time" if ask.users > 1 else "one request at a time"


def length_words(ask: ServeAsk) -> str:
    """Return the lengths of requests, and what is cached or drafted of them."""
    if ask.lengths:
        words = f"lengths of {ask.lengths}"
    else:
        spreads = [f" (spread {spread:g})" if spread else "" for spread in (ask.prompt_spread, ask.output_spread)]
        words = f"{ask.prompt:,} prompt{spreads[0]} + {ask.output:,} output tokens{spreads[1]}"
    words += f" after {ask.depth:,} cached ones" if ask.depth else ""
    words += f", {ask.prefix:.0%} of prompts cached" if ask.prefix else ""
    return words + (f", {ask.draft} drafted at {ask.accept:g}" if ask.draft else "")


def target_words(ask: ServeAsk) -> str:
    """Return the latency targets; '' without any."""
    words = {"ttft": "TTFT", "tpot": "per token", "e2e": "request"}
    shown = [f"{title} {getattr(ask, name).replace('@', ' at ')}" for name, title in words.items() if getattr(ask, name)]
    shown += [f"{ask.per_user:g} tokens/s each"] if ask.per_user else []
    return f"targets: {', '.join(shown)}" if shown else ""


def tokens(rate: float) -> str:
    """Format tokens/s with three digits and no exponent."""
    return f"{rate:,.0f}" if rate >= 999.5 else f"{rate:.3g}"
