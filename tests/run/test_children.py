"""Child processes end with everything they started."""

import signal
import subprocess
import sys
import time

import pytest

from meshwise.run import children

STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
inner = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"
subprocess.Popen([sys.executable, "-c", inner], start_new_session=True)
print("up", flush=True)
time.sleep(60)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="descendants are known by /proc")
def test_a_tree_that_ignores_sigterm_is_killed_with_the_sessions_it_started() -> None:
    process = subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE, text=True)
    assert process.stdout
    assert process.stdout.readline() == "up\n"
    family = children.descendants(process.pid)
    assert len(family) == 1
    children.end_tree(process, 0.2)
    process.stdout.close()
    assert process.returncode == -signal.SIGKILL
    end = time.monotonic() + 60
    while children.running(family) and time.monotonic() < end:
        time.sleep(0.02)
    assert children.running(family) == []
    children.end_tree(process, 0.2)  # again, when it is gone: nothing to do


def test_sigterm_is_an_interrupt_inside_the_block_and_its_own_again_outside() -> None:
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(KeyboardInterrupt), children.interrupt_on_stop():
        signal.raise_signal(signal.SIGTERM)
    assert signal.getsignal(signal.SIGTERM) == before
