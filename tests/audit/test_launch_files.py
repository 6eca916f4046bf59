"""A log with its launch file beside it: what the log does not say comes from the file."""

from pathlib import Path

import pytest

from meshwise import api
from meshwise.errors import UserError
from support.launch_files import FIXTURES

LINE = " iteration {}/ 95367 | elapsed time per iteration (s): 116.0 | global batch size: 2048 | lm loss: 6.38E+00 |\n"
LOG = LINE.format(2) + LINE.format(3)


def test_the_launch_file_says_what_the_log_leaves_out(tmp_path: Path) -> None:
    log = tmp_path / "main_log.log"
    log.write_text(LOG)
    (alone,) = api.audit(log, on="a100-80gb-sxm", plan=False).rows()
    (both,) = api.audit(log, FIXTURES / "bloom-176b.slurm", on="a100-80gb-sxm").rows()
    assert "mfu" not in alone
    assert both["devices"] == 384
    assert {axis: both["layout"][axis] for axis in ("dp", "tp", "pp", "micro_batch", "zero_stage")} == {
        "dp": 8, "tp": 4, "pp": 12, "micro_batch": 2, "zero_stage": 1,
    }  # fmt: skip
    assert both["tokens_per_step"] == 2048 * 2048
    assert both["expected_seconds"] == pytest.approx(
        116, rel=0.1
    )  # as the planner says for Megatron-DeepSpeed, not for Megatron-LM


def test_a_launch_file_alone_is_for_check() -> None:
    with pytest.raises(UserError, match="meshwise check"):
        api.audit(FIXTURES / "bloom-176b.slurm")
