"""ReplayAsk: a deployment and the traffic that goes through it, in the words of the command line."""

from typing import ClassVar

from meshwise import units
from meshwise.errors import UserError, quoted
from meshwise.plan.ask import ServeAsk
from meshwise.plan.fields import FLAG, LENGTH, RATE, SECONDS, SHARE, TEXT, Kind, asked, choice, number, quantity, question, whole
from meshwise.replay.engine.router import ROUTERS
from meshwise.replay.traces.made import KINDS

MAX_COPIES = 10_000


def _copies(value: "str | int") -> str:
    copies_of(str(value) if value else "")
    return str(value) if value else ""


def copies_of(text: str) -> tuple[int, int]:
    """Read '4' or '2..8': the fewest and the most copies; zeros where nothing is given."""
    low, dots, high = (word.strip() for word in text.partition(".."))
    numbers = [int(word) if word.isdecimal() and len(word) < 6 else 0 for word in (low, high if dots else low)]
    if text and not 1 <= numbers[0] <= numbers[1] <= MAX_COPIES:
        raise UserError(f"{quoted(text)}: expected a number of copies, or the fewest and the most, such as 4 or 2..8")
    return numbers[0], numbers[1]


COPIES: "Kind[str | int, str]" = Kind(_copies, str, "N|N..N")
HOURS = quantity("count", positive=True, metavar="HOURS")


@question
class ReplayAsk(ServeAsk):
    """Timed traffic through a deployment: `meshwise replay`. `model` may be a plan.json of `serve`."""

    verb: ClassVar[str] = "replay"

    # fmt: off
    trace: str = asked(default="", converter=TEXT)
    read: str = asked(default="", converter=TEXT)
    block: int = asked(default=0, converter=LENGTH)
    speed: float = asked(default=1.0, converter=number(0.001, 1000))
    scale_users: float = asked(default=1.0, converter=number(0.001, 1000))
    window: str = asked(default="", converter=TEXT)
    make: str = asked(default="", converter=choice(*KINDS))
    hours: float = asked(default=0.0, converter=HOURS)
    day: float = asked(default=0.0, converter=SHARE)
    seed: int = asked(default=0, converter=whole(0, 10**10))
    copies: str = asked(default="", converter=COPIES)
    router: str = asked(default="least-loaded", converter=choice(*ROUTERS))
    prefix_cache: bool = asked(default=True, converter=FLAG)
    host_cache: float = asked(default=0.0, converter=quantity("bytes", positive=True))
    disk_cache: float = asked(default=0.0, converter=quantity("bytes", positive=True))
    disk_bandwidth: float = asked(default="5GB/s", converter=RATE)
    chunk: int = asked(default=0, converter=LENGTH)
    autoscale: str = asked(default="", converter=TEXT)
    start_up: float = asked(default=0.0, converter=SECONDS)
    cooldown: float = asked(default="5min", converter=SECONDS)
    look: float = asked(default="15s", converter=SECONDS)
    mtbf: float = asked(default=0.0, converter=SECONDS)
    by: str = asked(default="money", converter=choice("money", "energy"))
    # fmt: on

    def check(self) -> None:
        """Raise UserError where the question has no traffic, or words that contradict each other."""
        if bool(self.trace) == bool(self.make):
            raise UserError("give either --trace FILE or --make KIND: the traffic to replay")
        for flag, value in (("--rate", self.rate), ("--hours", self.hours), ("--day", self.day)):
            if value and not self.make:
                raise UserError(f"{flag} belongs to --make; a trace has times of its own (--speed, --scale-users)")
        if self.users != 1:
            raise UserError("--users: a trace has its own requests; --scale-users 2 sends twice as many")
        if self.day > 1:
            raise UserError(f"--day {units.show(self.day, 'share')}: expected at most 100%")
        low, high = copies_of(self.copies)
        if self.autoscale and not high:
            raise UserError("--autoscale needs --copies: the fewest and the most, such as 1..8")
        if low != high and not (self.autoscale or self.cheapest):
            raise UserError(f"--copies {self.copies} needs --autoscale, such as queue:4, or --cheapest")
