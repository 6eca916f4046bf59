"""TuneAsk: the question of `meshwise tune`, in the words of the command line."""

import re
from typing import ClassVar

from meshwise.errors import UserError, quoted
from meshwise.plan.fields import FLAG, SHARE, TEXT, Ask, Kind, asked, choice, number, question, whole
from meshwise.run.train.ask import TIME

PLACEHOLDERS = ("script", "file", "folder", "name", "run")  # words in braces that --launch and --log may hold
STARTS = ("{script}", "{file}")  # one of these must be in --launch: without it, every run would start the same command
_BRACES = re.compile(r"\{([A-Za-z_]+)\}")


def _command(value: str) -> str:
    """Check the placeholders of a command. Braces of shell variables (${HOME}) and of awk ({print $1}) are left alone."""
    for match in _BRACES.finditer(value):
        if match[1] not in PLACEHOLDERS and value[max(0, match.start() - 1)] != "$":
            raise UserError(
                f"{quoted(value)}: unknown placeholder {match[0]}; known: {', '.join(f'{{{p}}}' for p in PLACEHOLDERS)}"
            )
    return value.strip()


def parse_options(text: str) -> dict[str, tuple[str, ...]]:
    """Read 'compile=no,yes precision=bf16,fp8': values by option, in order."""
    found: dict[str, tuple[str, ...]] = {}
    for piece in text.split():
        name, equals, values = piece.partition("=")
        listed = tuple(filter(None, values.split(",")))
        if not name or not equals or not listed:
            raise UserError(f"{quoted(piece)} is not option=values, such as compile=no,yes")
        if name in found or len(set(listed)) < len(listed):
            raise UserError(f"{quoted(piece)} repeats an option or a value")
        found[name] = listed
    return found


def _options(value: str) -> str:
    parse_options(value)
    return value


COMMAND: Kind[str, str] = Kind(_command, str, "COMMAND")
OPTIONS: Kind[str, str] = Kind(_options, str, "OPTION=VALUES...")


@question
class TuneAsk(Ask):
    """Find the fastest layout from a few measured runs: `meshwise tune`."""

    verb: ClassVar[str] = "tune"

    # fmt: off
    what: str = asked(default="", converter=TEXT, kw_only=False)
    runs: int = asked(default=5, converter=whole(1, 1000))
    launch: str = asked(default="", converter=COMMAND)
    own: bool = asked(default=False, converter=FLAG)
    by_hand: bool = asked(default=False, converter=FLAG)
    serve: bool = asked(default=False, converter=FLAG)
    steps: int = asked(default=20, converter=whole(4, 10**6))
    options: str = asked(default="", converter=OPTIONS)
    folder: str = asked(default="tune", converter=TEXT)

    to: str = asked(default="", converter=TEXT)
    launcher: str = asked(default="", converter=TEXT)
    log: str = asked(default="", converter=COMMAND)
    format: str = asked(default="", converter=TEXT)
    device: str = asked(default="", converter=choice("cpu", "cuda"))

    timeout: float = asked(default="30min", converter=TIME)
    minutes: float = asked(default=0.0, converter=number(0, 1e7))
    device_hours: float = asked(default=0.0, converter=number(0, 1e9))
    gain: float = asked(default="0.1%", converter=SHARE)
    side_by_side: int = asked(default=1, converter=whole(1, 256))

    engine_path: str = asked(default="", converter=TEXT)
    model_file: str = asked(default="", converter=TEXT)
    on: str = asked(default="", converter=TEXT)
    repeats: int = asked(default=3, converter=whole(1, 1000))

    replay: str = asked(default="", converter=TEXT)
    seeds: int = asked(default=100, converter=whole(1, 10**5))
    calibration: str = asked(default="", converter=TEXT)
    # fmt: on

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.launch and not any(word in self.launch for word in STARTS):
            raise UserError(
                f"--launch {quoted(self.launch)} has neither {{script}} nor {{file}}, the file of the run that it starts: "
                "--launch 'sbatch {script}'"
            )
        for flag, value, needs, there in (
            ("--log", self.log, "--launch", self.launch),
            ("--device", self.device, "--own", self.own),
            ("--seeds", self.seeds != 100, "--replay", self.replay),
        ):
            if value and not there:
                raise UserError(f"{flag} requires {needs}")

    def check_way(self, *, serving: bool) -> None:
        """Refuse a question that does not say how runs are started, or says it twice."""
        ways = {"--launch": bool(self.launch), "--own": self.own, "--by-hand": self.by_hand}
        given = [flag for flag, value in ways.items() if value]
        if len(given) > 1:
            raise UserError(f"{given[0]} and {given[1]} are two ways to start runs: give one of them")
        if not given and not serving:
            raise UserError(
                "how are runs started? --launch 'sbatch {script}' (or 'bash {script}'), --own for meshwise's trainer on this machine, "
                "or --by-hand"
            )
        if serving and self.own:
            raise UserError("--own is for training; without --launch, an engine is started on this machine")
