"""Start a tuning from its question: of a training plan, or of a served model."""

from pathlib import Path

from meshwise.catalogue import records
from meshwise.errors import UserError, quoted
from meshwise.models import find
from meshwise.plan.serve import plan as serving_plans
from meshwise.plan.serve.plan import ServePlan
from meshwise.plan.train import plan as training_plans
from meshwise.plan.train.plan import TrainPlan
from meshwise.run.callbacks import Say
from meshwise.tune.ask import TuneAsk
from meshwise.tune.loop.by_hand import Prompt
from meshwise.tune.loop.course import tune
from meshwise.tune.loop.result import Tuned


def start(ask: TuneAsk, plan: TrainPlan | ServePlan | None = None, *, say: Say, answer: Prompt) -> Tuned:
    """Tune a plan, or with --serve a model. `plan` stands for a plan.json."""
    plan = plan or _read(ask)
    if ask.serve and isinstance(plan, TrainPlan):
        raise UserError(f"--serve: {ask.what} is a plan for training; drop --serve, or plan with 'meshwise serve --out'")
    ask.check_way(serving=not isinstance(plan, TrainPlan))
    if isinstance(plan, TrainPlan):
        from meshwise.tune.loop.training import Training

        return tune(Training(plan, ask), ask, say=say, answer=answer)
    from meshwise.tune.loop.serving import Serving

    return tune(Serving(plan, ask), ask, say=say, answer=answer)


def _read(ask: TuneAsk) -> TrainPlan | ServePlan | None:
    """Read the plan.json that the question names; None for a model or .gguf, which --serve takes."""
    if not ask.what:
        raise UserError("missing PLAN: a plan.json of 'meshwise plan --out plan.json', or --replay TABLE")
    path = Path(ask.what)
    if ask.serve and not (path.suffix == ".json" and path.is_file() and "ask" in find.values_of(path)):
        return None
    if not path.is_file():
        raise UserError(
            f"{quoted(ask.what, 200)}: there is no such file; make one with 'meshwise plan MODEL ... --out plan.json'"
        )
    serves = records.any_table(path).get("kind", "") == ServePlan.kind
    return (serving_plans if serves else training_plans).read(path)
