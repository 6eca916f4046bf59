"""A run that is killed at any named point of its start or of a checkpoint loses nothing: `make torture` kills at random ones."""

import time
from dataclasses import replace
from pathlib import Path

import pytest

from meshwise.workers.trainer.checkpoint import find_damage
from meshwise.workers.trainer.contract.marker import complete_steps
from meshwise.workers.trainer.contract.process.kill_points import AGENT, LAUNCHER, POINTS, WORKER
from support.nursery import Nursery
from support.tiny_runs import WHOLE, losses
from support.trainer_process import Training, alive, descendants

pytestmark = pytest.mark.slow

SETTINGS = replace(WHOLE, steps=6, checkpoint_every=2, keep=1, save=True)
STEPS = list(range(SETTINGS.steps))


@pytest.fixture(scope="module")
def unbroken(nursery: Nursery, tmp_path_factory: pytest.TempPathFactory) -> dict[int, float]:
    return losses(nursery, SETTINGS, tmp_path_factory.mktemp("unbroken"))


@pytest.mark.parametrize("point", WORKER)
def test_a_worker_killed_at_a_point_loses_nothing(
    nursery: Nursery, unbroken: dict[int, float], tmp_path: Path, point: str
) -> None:
    token, out = tmp_path / "kill", tmp_path / "run"
    token.touch()
    out.mkdir()
    settings = replace(SETTINGS, out=str(out))
    settings.write(out / "config.json")
    words = ("-m", "meshwise.workers.trainer", str(out / "config.json"))
    with pytest.raises(AssertionError, match=r"exit codes \[.*-9"):
        nursery.run(*words, MESHWISE_KILL_AT=f"{point}:{token}")
    assert not token.exists()
    kept = complete_steps(out / "checkpoints")
    assert [find_damage(out / "checkpoints" / f"step-{step}") for step in kept] == [""] * len(kept)
    assert losses(nursery, settings, out) == unbroken  # to the last bit
    assert [int(line.split(",")[0].split(":")[1]) for line in (out / "steps.jsonl").read_text().splitlines()] == STEPS
    assert complete_steps(out / "checkpoints") == [SETTINGS.steps]
    assert not list(out.glob("**/*.part"))


@pytest.mark.slow
def test_a_launcher_and_an_agent_killed_at_a_point_leave_no_process_and_lose_nothing(
    unbroken: dict[int, float], tmp_path: Path
) -> None:
    token, out, tmp = tmp_path / "kill", tmp_path / "run", tmp_path / "tmp"
    tmp.mkdir()
    options = ("--mbs", "1", "--steps", "6", "--checkpoint-every", "2", "--keep", "1")
    for point in (*LAUNCHER, *AGENT):
        token.touch()
        run = Training(out, *options, TMPDIR=str(tmp), MESHWISE_KILL_AT=f"{point}:{token}")
        family: set[int] = set()
        while run.process.poll() is None:
            family |= set(descendants(run.process.pid))
            time.sleep(0.01)
        run.until_gone(list(family))
        assert not token.exists(), point
        assert not list(tmp.iterdir()), point
        assert not (out / "steps.jsonl").exists(), point
    # the launcher is killed while the workers import torch: the same command runs beside none of them
    run = Training(out, *options, MESHWISE_KILL_AT=f"worker begins:{token}")
    token.with_suffix(".part").write_text(str(run.process.pid))
    token.with_suffix(".part").rename(token)
    run.process.wait()
    again = Training(out, *options)
    assert again.end() == 0, again.printed()
    assert again.losses() == [unbroken[step] for step in STEPS]
    assert alive(descendants(again.process.pid)) == []


def test_every_point_is_reached_by_the_code_and_each_has_one_name() -> None:
    source = Path(__file__).parents[5] / "src" / "meshwise"
    text = "".join(path.read_text(encoding="utf-8") for path in source.rglob("*.py"))
    assert {name: text.count(f'reach("{name}")') for name in POINTS} == dict.fromkeys(POINTS, 1)
