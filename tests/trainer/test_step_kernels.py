"""The kernels of a step: in Triton's interpreter here, and on a GPU in test_kernels_on_gpu.py."""

import os
import subprocess
import sys
from pathlib import Path


def test_kernels_compute_what_plain_pytorch_does() -> None:
    # a process of its own: Triton reads the variable when it is first imported
    worker = Path(__file__).with_name("step_kernels_worker.py")
    done = subprocess.run(
        [sys.executable, str(worker)], env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
