"""TuneAsk: the question of `meshwise tune`, in the words of the command line."""

import re
from typing import ClassVar

from meshwise.errors import UserError, quoted
from meshwise.plan.fields import FLAG, SHARE, TEXT, Ask, Kind, asked, choice, number, question, whole
from meshwise.run.train.ask import TIME

PROGRAM = "How runs are started and read"
BUDGET = "When to stop"
ENGINE = "Serving"
REPLAY = "Replay of a table"
PLACEHOLDERS = ("script", "file", "folder", "name", "run")
"""Words in braces that --launch and --log may hold."""
STARTS = ("{script}", "{file}")
"""One of these must be in --launch: without it, every run would start the same command."""
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
    what: str = asked(default="", converter=TEXT, kw_only=False,
                      help="A plan.json of 'meshwise plan' or 'meshwise serve'; with --serve also a .gguf or a model.")
    runs: int = asked(default=5, converter=whole(1, 1000), help="Runs, at most; earlier runs in the folder count.")
    launch: str = asked(default="", converter=COMMAND,
                        help="Start a run with this command: 'sbatch {script}', 'bash {script}', 'kubectl apply -f {file}'.")
    own: bool = asked(default=False, converter=FLAG, help="Run meshwise's own trainer on this machine.")
    by_hand: bool = asked(default=False, converter=FLAG, help="Print the next layout to try, and ask for its log.")
    serve: bool = asked(default=False, converter=FLAG, help="PLAN is a model to serve: tune its layout and its engine's options.")
    steps: int = asked(default=20, converter=whole(4, 10**6), help="Steps of a run.")
    options: str = asked(default="", converter=OPTIONS, flag="--try", shown="the plan's; for serving, those of the engine",
        help="Tune these too: 'compile=no,yes precision=bf16,fp8 loss=chunked,fused', or flags of an engine: 'ubatch-size=256,512'.")
    folder: str = asked(default="tune", converter=TEXT, help="Folder of the runs. The same command goes on where it stopped.")

    to: str = asked(default="", converter=TEXT, shown="the plan's framework", group=PROGRAM,
                    help="Program whose launch files are written, as for 'meshwise export'.")
    launcher: str = asked(default="", converter=TEXT, flag="--with", shown="slurm for sbatch, jobset for kubectl, else torchrun",
                          group=PROGRAM, help="Launcher: torchrun, slurm, jobset, trainjob, leaderworkerset, skypilot, ray.")
    log: str = asked(default="", converter=COMMAND, group=PROGRAM,
        help="Command that prints a run's log and ends with the run, where it cannot write into the folder: 'kubectl logs -f job/{name}'.")
    format: str = asked(default="", converter=TEXT, help="Format of the logs, as for 'meshwise audit'.", shown="by content",
                        group=PROGRAM)
    device: str = asked(default="", converter=choice("cpu", "cuda"), help="With --own: the device.",
                        shown="cuda if there is a GPU", group=PROGRAM)

    timeout: float = asked(default="30min", converter=TIME,
                           help="End a run after this long, from its start; time in a queue does not count.", group=BUDGET)
    minutes: float = asked(default=0.0, converter=number(0, 1e7), help="Start no run after this many minutes.", shown="no limit",
                           group=BUDGET)
    device_hours: float = asked(default=0.0, converter=number(0, 1e9), shown="no limit", group=BUDGET,
                                help="Start no run after runs have used this many device-hours.")
    gain: float = asked(default="0.1%", converter=SHARE, help="Stop when a further run is expected to save less than this share.",
                        group=BUDGET)
    side_by_side: int = asked(default=1, converter=whole(1, 256),
                              help="Runs at the same time, where the cluster has room for several.", group=BUDGET)

    engine_path: str = asked(default="", converter=TEXT, help="Folder of the engine's programs, or xllamacpp.", group=ENGINE)
    model_file: str = asked(default="", converter=TEXT, help="The .gguf, or the folder of weights.", group=ENGINE)
    on: str = asked(default="", converter=TEXT, help="This machine as a cluster: 2xrtx3090.", shown="detected",
                    complete="clusters", group=ENGINE)
    repeats: int = asked(default=3, converter=whole(1, 1000), help="Repeats of a measurement, after a warm-up.", group=ENGINE)

    replay: str = asked(default="", converter=TEXT, group=REPLAY,
        help="Instead of PLAN, a table of measured runs (.csv or built in): the time lost by number of runs, beside other ways to choose.")
    seeds: int = asked(default=100, converter=whole(1, 10**5), help="Random orders to average over.", group=REPLAY)
    calibration: str = asked(default="", converter=TEXT, help="Calibration to begin with.", shown="one that never saw the table",
                             group=REPLAY)
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
