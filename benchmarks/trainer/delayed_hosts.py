"""Hosts in network namespaces whose cables end in a switch in this process, which delivers every frame a fixed time after it was sent.

A kernel with netem needs none of this: `tc qdisc add dev cable root netem delay 10ms`.
"""

import fcntl
import os
import select
import struct
import threading
import time
from collections import deque

from support.three_hosts import ThreeHosts, ip

TUNSETIFF, TUNSETOFFLOAD = 0x400454CA, 0x400454D0
TAP, NO_PACKET_INFORMATION, HEADER = 0x0002, 0x1000, 0x4000
"""Flags of a tap device: Ethernet frames, each with the header of virtio-net that says how to cut it into packets."""
CHECKSUMS, LONG_FRAMES = 0x01, 0x02
"""The switch may get frames without checksums and of up to 64 KiB of TCP, which saves it forty reads of every forty-one."""
HEADER_BYTES, MOST = 10, 2**17
GROUP_BIT = 1
"""In the first byte of an address: the frame is for all hosts."""


class DelayedHosts(ThreeHosts):
    """Hosts whose cables delay every frame by some seconds in each direction."""

    def __init__(self, delay: float) -> None:
        super().__init__()
        self.delay = delay
        self._ports: list[int] = []
        self._known: dict[bytes, int] = {}
        """Port by address, learned from what hosts send."""
        self._waiting: deque[tuple[float, int, bytes]] = deque()
        """When a frame is due, the port it came from, and the frame. The delay is the same for all, so that they are in order."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._forward, daemon=True)

    def make(self) -> None:
        for number, name in enumerate(self.names):
            ip("netns", "add", name)
            port = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
            device = f"mwtap{number}"
            fcntl.ioctl(port, TUNSETIFF, struct.pack("16sH", device.encode(), TAP | NO_PACKET_INFORMATION | HEADER))
            fcntl.ioctl(port, TUNSETOFFLOAD, CHECKSUMS | LONG_FRAMES)
            self._ports.append(port)
            ip("link", "set", device, "netns", name, "name", "cable")
            ip("-n", name, "addr", "add", f"10.79.0.{number + 1}/24", "dev", "cable")
            for each in ("cable", "lo"):
                ip("-n", name, "link", "set", each, "up")
            # a pause of the program is no sign of a changed route; otherwise every collective would start slowly again
            ip("netns", "exec", name, "sysctl", "-q", "-w", "net.ipv4.tcp_slow_start_after_idle=0")
        self._thread.start()

    def remove(self) -> None:
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()
        for number, name in enumerate(self.names):
            self.kill(number)
            ip("netns", "del", name, check=False)
        for port in self._ports:
            os.close(port)

    def _forward(self) -> None:
        while not self._ended.is_set():
            now = time.monotonic()
            while self._waiting and self._waiting[0][0] <= now:
                _, port, frame = self._waiting.popleft()
                self._deliver(port, frame)
            wait = self._waiting[0][0] - time.monotonic() if self._waiting else 0.1
            for port in select.select(self._ports, [], [], max(0.0, wait))[0]:
                self._receive(port)

    def _receive(self, port: int) -> None:
        """Read all frames that a host has sent by now."""
        while True:
            try:
                frame = os.read(port, MOST)
            except BlockingIOError:
                return
            self._known[frame[HEADER_BYTES + 6 : HEADER_BYTES + 12]] = port
            self._waiting.append((time.monotonic() + self.delay, port, frame))

    def _deliver(self, source: int, frame: bytes) -> None:
        address = frame[HEADER_BYTES : HEADER_BYTES + 6]
        known = self._known.get(address)
        targets = [known] if known is not None and not address[0] & GROUP_BIT else [p for p in self._ports if p != source]
        for target in targets:
            os.write(target, frame)
