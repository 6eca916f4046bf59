"""Three hosts in network namespaces, joined by a switch, whose cables can be cut."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

HOSTS = 3


class Unavailable(Exception):
    """Network namespaces cannot be made here."""


def ip(*words: str, check: bool = True) -> str:
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if check and done.returncode:
        raise Unavailable(done.stderr.strip())
    return done.stdout


class ThreeHosts:
    """Hosts 10.79.0.1 to 10.79.0.3."""

    def __init__(self) -> None:
        self.switch = f"mw{os.getpid()}s"
        self.names = [f"mw{os.getpid()}{number}" for number in range(HOSTS)]

    def make(self) -> None:
        ip("netns", "add", self.switch)
        ip("-n", self.switch, "link", "add", "bridge", "type", "bridge")
        ip("-n", self.switch, "link", "set", "bridge", "up")
        for number, name in enumerate(self.names):
            ip("netns", "add", name)
            ip("link", "add", "cable", "netns", name, "type", "veth", "peer", "name", f"port{number}", "netns", self.switch)
            ip("-n", self.switch, "link", "set", f"port{number}", "master", "bridge")
            ip("-n", self.switch, "link", "set", f"port{number}", "up")
            ip("-n", name, "addr", "add", f"10.79.0.{number + 1}/24", "dev", "cable")
            for device in ("cable", "lo"):
                ip("-n", name, "link", "set", device, "up")

    def remove(self) -> None:
        for number, name in enumerate(self.names):
            self.kill(number)
            ip("netns", "del", name, check=False)
        ip("netns", "del", self.switch, check=False)

    def before(self, number: int) -> tuple[str, ...]:
        """Return the words that start a command on a host."""
        return ("ip", "netns", "exec", self.names[number])

    def kill(self, number: int) -> None:
        """Kill every process of a host."""
        for pid in ip("netns", "pids", self.names[number], check=False).split():
            try:
                os.kill(int(pid), signal.SIGKILL)
            except ProcessLookupError:
                continue

    def cut(self, number: int) -> None:
        ip("-n", self.switch, "link", "set", f"port{number}", "down")

    def join(self, number: int) -> None:
        ip("-n", self.switch, "link", "set", f"port{number}", "up")


@contextmanager
def three_hosts() -> Iterator[ThreeHosts]:
    """Make the hosts; raise Unavailable without root or the program ip."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        raise Unavailable("network namespaces need root and the program ip")
    hosts = ThreeHosts()
    try:
        hosts.make()
        yield hosts
    finally:
        hosts.remove()
