"""Files named on the command line of 'meshwise ui': a plan.json, folders of runs, results of bench, or logs. No other file is read."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import urlencode

from meshwise import api
from meshwise.errors import UserError, quoted
from meshwise.plan.rl.plan import RolloutPlan
from meshwise.plan.serve.plan import ServePlan
from meshwise.plan.train.plan import TrainPlan
from meshwise.programs import engines
from meshwise.programs.serve import setup
from meshwise.ui.web.asking import query_of

STEPS = "steps.jsonl"  # the file that a run of our trainer writes a line into for every step


@dataclass(frozen=True)
class Named:
    """Files by the name under which pages show them."""

    plan: TrainPlan | ServePlan | None = None
    runs: dict[str, Path] = field(default_factory=dict[str, Path])  # folders that hold steps.jsonl
    benches: dict[str, Path] = field(default_factory=dict[str, Path])
    logs: dict[str, Path] = field(default_factory=dict[str, Path])

    @property
    def models(self) -> frozenset[str]:
        """Models that the plan names; a question may name them too, even where they are files."""
        return frozenset([self.plan.ask.model] if self.plan else [])


def read(paths: Sequence[Path]) -> Named:
    """Sort what was named: a plan.json is read now, runs and logs when their page is opened. UserError for a name that is nothing."""
    plan: TrainPlan | ServePlan | None = None
    runs, benches, logs = dict[str, Path](), dict[str, Path](), dict[str, Path]()
    for path in paths:
        if path.is_dir():
            found = run_folders(path)
            if not found:
                raise UserError(f"{quoted(str(path), 200)} holds no run: expected {STEPS} in it or in a folder below it")
            runs |= found
        elif not path.is_file():
            raise UserError(f"{quoted(str(path), 200)} is neither a file nor a folder")
        elif path.suffix == ".json" and api.is_bench(path):
            benches[path.name] = path
        elif path.suffix == ".json":
            if plan is not None:
                raise UserError(f"{path}: a second plan; the page opens one plan.json at a time")
            loaded = api.load(path)
            if isinstance(loaded, RolloutPlan):
                raise UserError(f"{path}: a plan on generated answers has no page yet; meshwise plan and export show it")
            plan = _with_own_commands(loaded)
        else:
            logs[path.name] = path
    return Named(plan, runs, benches, logs)


def _with_own_commands(plan: TrainPlan | ServePlan) -> TrainPlan | ServePlan:
    """Return a plan whose commands are computed here: pages show them to be copied and run, and the file may be a stranger's."""
    if not isinstance(plan, ServePlan):
        return plan
    subject = setup.of_plan(plan).plan
    return replace(plan, commands=engines.commands(subject.q, subject.layout))


def run_folders(folder: Path) -> dict[str, Path]:
    """Return the folders of runs: the folder itself, and those directly below it."""
    if (folder / STEPS).is_file():
        return {folder.resolve().name: folder}
    return {path.name: path for path in sorted(folder.iterdir()) if (path / STEPS).is_file()}


def first_page(named: Named) -> str:
    """Return the page to open first: the one that shows what was named."""
    if named.plan is not None:
        return f"/{named.plan.ask.verb}?{urlencode(query_of(named.plan.ask))}"
    if named.runs or named.benches:
        return "/runs"
    return "/audit" if named.logs else "/"
