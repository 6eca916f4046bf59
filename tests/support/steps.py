"""Steps to simulate, shared by the tests of timelines and their pictures."""

from hypothesis import assume
from hypothesis import strategies as st

from meshwise.cost.axes import SCHEDULES
from meshwise.cost.layout import Layouts
from meshwise.cost.train.question import Question
from meshwise.cost.train.step import evaluate
from meshwise.plan.train.choice import Choice, choice
from meshwise.plan.train.timeline import Timeline, simulate_step
from support.train_questions import block, question, questions, rows


def chosen(q: Question, row: dict[str, int]) -> Choice:
    layouts = block([row])
    return choice(q, layouts, evaluate(q, layouts), 0)


@st.composite
def steps(draw: st.DrawFn) -> tuple[Question, Choice]:
    q = draw(questions())
    row = draw(rows(q))
    assume(SCHEDULES[row["schedule"]] in q.work.framework.schedules)
    microbatches = int(q.work.batch) // (row["dp_replicate"] * row["dp_shard"] * row["mbs"])
    assume(row["vpp"] == 1 or microbatches % row["pp"] == 0)
    return q, chosen(q, row)


def eight_stages(**axes: int) -> Timeline:
    q = question("llama-3-8b", "8x8xh100-sxm", "torchtitan", batch=16)
    row = {"pp": 8, "tp": 8, **axes}
    layouts = Layouts.of(**row)
    return simulate_step(q, choice(q, layouts, evaluate(q, layouts), 0))
