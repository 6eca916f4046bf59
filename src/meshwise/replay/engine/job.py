"""Job: a request on its way through an engine."""


class Job:
    """A request on its way. Times in seconds, -1 where they have not come."""

    __slots__ = (
        "admitted", "arrived", "blocks", "done", "first", "have", "later", "made", "output", "own", "preempted",
        "prompt", "ready", "reused", "since", "start", "total", "turn",
    )  # fmt: skip

    def __init__(self, arrived: float, prompt: int, output: int, blocks: tuple[int, ...] = ()) -> None:
        self.arrived = arrived
        self.prompt = prompt
        """Tokens of its prompt and, after a preemption, of what it had generated."""
        self.output = output
        """Tokens to generate from here on."""
        self.total = output
        """Tokens that its user gets."""
        self.blocks = blocks
        self.have = 0
        """Tokens that arrive with it: computed by another pool, or by earlier turns."""
        self.later = 0
        """Tokens that another pool generates after this one."""
        self.ready = 0
        """Tokens that are in the cache when it is admitted."""
        self.done = 0
        """Tokens of its prompt that are computed."""
        self.made = 0
        self.own = 0.0
        """Tokens of cache that it holds when it begins to generate, shared ones aside."""
        self.start = 0
        """Step at which it began to generate."""
        self.since = 0.0
        """When it came to this engine."""
        self.turn = 0
        """Number of its turn to generate on this copy; 0 while it does not."""
        self.admitted = self.first = -1.0
        self.reused = self.preempted = 0
