"""Days, dollars and energy with intervals; a usual team; renting against buying; small runs in minutes and cents."""

import pytest

from meshwise import api
from meshwise.plan.train import money
from meshwise.plan.train.plan import TrainPlan
from meshwise.ui.views.plan import dollar_words, table


@pytest.fixture(scope="module")
def long_plan() -> TrainPlan:
    return api.plan("llama-3-8b", on="8xh100-sxm", batch=64, tokens="15B", framework="fsdp", price="2.5/h")


def test_days_and_dollars_have_the_interval_of_the_step(long_plan: TrainPlan) -> None:
    best = long_plan.best
    days, dollars = money.days(best), money.dollars(best)
    assert days
    assert dollars
    assert days.low / days.value == dollars.low / dollars.value == pytest.approx(best.low / best.step)
    assert days.high / days.value == pytest.approx(best.high / best.step)
    assert long_plan.rows()[0]["total_days_low"] == days.low
    assert long_plan.rows()[0]["name"] == best.name


def test_a_usual_team_and_buying_are_stated_with_their_sources(long_plan: TrainPlan) -> None:
    daily, usual, bought = long_plan.money
    assert daily.startswith("90% of such runs take ")
    assert daily.endswith("tokens a day.")
    assert "5 published trainings" in usual
    assert "recalled" in usual
    assert bought.startswith("To buy 8 at $37,500 (2023-06-01, recalled)")
    # 37,500 over 5 years are $0.856 an hour; $2.50 less 0.0815 of power leave 2.4185: 35% of the time
    assert "if in use over 35% of 5 years" in bought


def test_a_small_run_is_in_minutes_cents_and_watt_hours() -> None:
    plan = api.plan("qwen3-0.6b", on="1x4090", batch=8, finetune="lora", tokens="5M")
    titles = [column.title for column in table(plan).columns]
    assert titles[-3:] == ["minutes", "cost", "Wh"]
    assert table(plan).columns[-2].cell(plan.best).startswith("$0.07 ($0.0")
    assert len(plan.money) == 1  # neither a team nor a purchase for seven cents
    assert dollar_words(54_200_000) == "$54.2M"


@pytest.mark.parametrize("text", ["2.5", "2.5/h", "$2.50/h", "$2.5", "2.5 /hr"])
def test_a_price_is_read_as_people_type_it(text: str, long_plan: TrainPlan) -> None:
    assert api.TrainAsk("llama-3-8b", price=text).price == long_plan.ask.price
