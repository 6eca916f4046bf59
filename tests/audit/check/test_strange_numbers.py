"""Launch files with one number changed to something that no run has are judged or refused in one line."""

import random
import re
from pathlib import Path

import pytest

from meshwise import api
from meshwise.errors import UserError
from support.launch_files import FIXTURES

STRANGE = ("9" * 300, "9" * 30, str(2**63), str(2**31), "0", "-1", "1e400", "1e30", "0.5", "e5", "10000000000000", "9" * 18)
KINDS = (".sh", ".yaml", ".yml", ".json", ".toml", ".sbatch", ".slurm")


def test_a_batch_larger_than_any_is_refused_and_not_factored(tmp_path: Path) -> None:
    """Divisors of 2^64 and more sequences were looked for one by one."""
    script = tmp_path / "train.sh"
    text = (FIXTURES / "maxtext-llama3.sh").read_text()
    changed = re.sub(r"per_device_batch_size=\S+", f"per_device_batch_size={2**64}", text).replace(" steps=30", "")
    script.write_text(changed)
    with pytest.raises(UserError, match=r"a batch of .* tokens is too large"):
        api.check(script, on="8x8xh100-sxm")


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(1, 6))])
def test_a_number_that_no_run_has_is_judged_or_refused(seed: int, tmp_path: Path) -> None:
    luck = random.Random(seed)
    files = sorted(path for path in FIXTURES.iterdir() if path.suffix in KINDS)
    for _ in range(25):
        file = luck.choice(files)
        text = file.read_text()
        spot = luck.choice(list(re.finditer(r"\b\d+\b", text)))
        changed = tmp_path / file.name
        changed.write_text(text[: spot.start()] + luck.choice(STRANGE) + text[spot.end() :])
        try:
            api.check(changed, on=luck.choice(["8x8xh100-sxm", "h100-sxm", "1xh100-sxm"]))
        except UserError:
            continue
