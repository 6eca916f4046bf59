"""A serving layout at other settings than its plan's."""

from pathlib import Path

import pytest

from meshwise.errors import DoesNotFit
from meshwise.run.bench.speeds import Setting
from meshwise.run.serve.deployment import with_room_for
from support.engines import plan


def test_settings_beyond_the_plan_get_a_larger_cache_in_the_same_layout(tmp_path: Path) -> None:
    one, _ = plan(tmp_path)
    wide = with_room_for(one, [Setting(prompt=6000, output=200, users=4), Setting(prompt=10, output=10, users=1)])
    assert (wide.layout, wide.question.work.users) == (one.layout, 4)
    assert wide.question.work.context >= 6200
    with pytest.raises(DoesNotFit, match="has no room for 4000 concurrent requests"):
        with_room_for(one, [Setting(prompt=6000, output=200, users=4000)])
    assert one.predict(Setting(prompt=6000, output=200, users=4000)) is None


def test_without_a_setting_the_prediction_is_for_one_request_at_the_planned_lengths(tmp_path: Path) -> None:
    one, _ = plan(tmp_path)
    own, same = one.predict(), one.predict(Setting(prompt=one.ask.prompt, output=one.ask.output, users=1))
    assert own
    assert same
    assert own.per_user == same.per_user > 0
