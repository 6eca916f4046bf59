"""A real Slurm takes exported scripts where they fit, and refuses them where they do not."""

from pathlib import Path

from meshwise.programs.program import Job, find_launcher
from support.slurm import in_slurm, needs_slurm

pytestmark = needs_slurm


def test_scripts_are_accepted_where_they_fit_and_refused_where_not(tmp_path: Path) -> None:
    sizes = {"fits": (48, 8), "whole": (64, 8), "too_many_nodes": (65, 8), "too_many_devices": (2, 9)}
    for name, (nodes, devices) in sizes.items():
        job = Job(name, nodes, devices, ("pretrain_gpt.py", "--tp", "8"), chip="a100-80gb-sxm", hours=20.0)
        (tmp_path / f"{name}.sbatch").write_text(find_launcher("slurm").write(job)["train.sbatch"])
    tried = in_slurm(
        tmp_path, "for f in *.sbatch; do sbatch --test-only -p big $f > $f.log 2>&1 && echo $f yes || echo $f no; done\n"
    )
    assert sorted(tried.split("\n")[:-1]) == [
        "fits.sbatch yes",
        "too_many_devices.sbatch no",
        "too_many_nodes.sbatch no",
        "whole.sbatch yes",
    ]
    assert "big[001-048]" in (tmp_path / "fits.sbatch.log").read_text()
