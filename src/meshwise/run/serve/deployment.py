"""Deployment: a serving layout that can be started, and predicted at any setting."""

from dataclasses import dataclass, replace

from meshwise import units
from meshwise.catalogue import chips, here
from meshwise.cost.serve.layouts import ServeLayout
from meshwise.cost.serve.load.requests import Load
from meshwise.cost.serve.question import ServeQuestion
from meshwise.errors import DoesNotFit, UserError
from meshwise.plan.ask import ServeAsk
from meshwise.plan.serve import lookup
from meshwise.plan.serve.plan import ServePlan
from meshwise.plan.serve.refusal import refuse
from meshwise.plan.serve.search import Option, search, with_memory, with_speed
from meshwise.run.bench.speeds import Setting


@dataclass(frozen=True)
class Deployment:
    """A serving layout with the question that it answers."""

    ask: ServeAsk
    question: ServeQuestion
    layout: ServeLayout

    def at(self, setting: Setting) -> ServeQuestion:
        """Return the question at another load."""
        context = max(self.question.work.context, setting.prompt + setting.output)
        return lookup.question(at_users(self.ask, setting.prompt, setting.output, setting.users, context), self.question.model)

    def predict(self, setting: Setting | None = None) -> Option | None:
        """Predict this layout at another load (None: one request at the planned lengths); None if it does not fit."""
        q = self.at(setting or Setting(prompt=self.ask.prompt, output=self.ask.output, users=1))
        option = with_memory(q, self.layout)
        return with_speed(q, option) if option.fits else None

    def predict_load(self, load: Load) -> Option | None:
        """Predict this layout at a rate of requests, with percentiles. None where it does not fit or cannot serve the rate."""
        prompt, output = round(load.prompt.mean), round(load.output.mean)
        context = max(self.question.work.context, prompt + output)
        q = replace(lookup.question(at_users(self.ask, prompt, output, 1, context), self.question.model), load=load)
        option = with_memory(q, self.layout)
        found = with_speed(q, option, detailed=True) if option.fits else None
        return found if found and found.report else None

    def memory_summary(self) -> str:
        """Return the planned bytes on each device, to compare with an engine that ran out of memory."""
        option = with_memory(self.question, self.layout)
        parts = [units.show(need.bytes, "bytes", binary=True, digits=3) for need in option.footprints]
        devices = ", ".join(f"device {i}: {text}" for i, text in enumerate(parts[1:]))
        return f"planned {devices}; host: {parts[0]}"


def deployment(ask: ServeAsk) -> Deployment:
    """Return the best layout for a question. Asking the question of a saved plan again gives that plan's layout."""
    q = lookup.question(ask)
    result = search(q)
    if not result.options:
        raise refuse(q, result)
    return Deployment(ask, q, result.options[0].layout)


def at_users(ask: ServeAsk, prompt: int, output: int, users: int, context: int) -> ServeAsk:
    """Return the question at a closed load of `users` with these lengths, without a rate, spreads, targets or a fixed layout."""
    lengths = {
        "prompt": prompt, "output": output, "prompt_spread": 0.0, "output_spread": 0.0, "lengths": "", "prefix": 0.0,
        "depth": 0,
    }  # fmt: skip
    targets = {"ttft": "", "tpot": "", "e2e": "", "per_user": 0.0}
    return replace(ask, users=users, rate=0.0, burst=1.0, context=context, fix=(), **lengths, **targets)


def with_room_for(planned: Deployment, settings: list[Setting]) -> Deployment:
    """Return the same layout with a KV cache for the longest and the most requests of these settings."""
    prompt, output = max(s.prompt for s in settings), max(s.output for s in settings)
    users = max(s.users for s in settings)
    # Prompts are made of words, whose number of tokens is only known approximately: 1/16 and 32 tokens of margin.
    context = max(planned.ask.context, (prompt + output) * 17 // 16 + 32)
    ask = at_users(planned.ask, prompt, output, users, context)
    q = lookup.question(ask, planned.question.model)
    if not with_memory(q, planned.layout).fits:
        raise DoesNotFit(
            f"{planned.layout.name} has no room for {users} concurrent requests with {prompt + output:,} tokens each"
        )
    return Deployment(ask, q, planned.layout)


def ask_here(model: str, on: str, engine: str = "") -> ServeAsk:
    """Return a question about serving on this machine: on its GPUs if the catalogue knows them, else on its CPU."""
    gpus = here.gpus()
    chip = chips.known_chip(gpus[0].removeprefix("NVIDIA ")) if gpus else None
    if gpus and chip is None and not on:
        raise UserError(f"{gpus[0]} is not in the catalogue; name the most similar chip with --on (meshwise show chips)")
    number = 1 if engine == "transformers" else len(gpus)  # it uses several GPUs only if --on or a plan says so
    return ServeAsk(model=model, on=on or (f"{number}x{chip.key}" if chip else "cpu"), engine=engine)


def ask_of(plan: ServePlan) -> ServeAsk:
    """Return the question of a saved plan with the engine and context that it assumed, and without `--measured`."""
    return replace(plan.ask, measured=0.0, engine=plan.engine, context=plan.context)
