"""What a program of the system prints (nvidia-smi, rocm-smi, sinfo, kubectl, dmesg), as text within bounds of time and size. No torch."""

import os
import re
import selectors
import shutil
import subprocess
import time

SECONDS = 20.0
MAX_BYTES = 20_000_000


class ToolError(ValueError):
    """A program that is missing, fails, does not end or prints without end."""


def output(*command: str) -> str:
    """Return what a program prints on standard output."""
    if shutil.which(command[0]) is None:
        raise ToolError(f"{command[0]} is not installed here")
    try:
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as tool:
            try:
                said, complaint = _read(tool, time.monotonic() + SECONDS)
                code = tool.wait(SECONDS)
            finally:
                tool.kill()
    except (OSError, subprocess.SubprocessError) as error:
        raise ToolError(f"{command[0]}: {error}") from None
    if code:
        lines = [line for line in (complaint or said).strip().splitlines() if not re.match(r"[EWI]\d{4} ", line)]  # kubectl's log
        raise ToolError(f"{command[0]} failed: {lines[0][:200] if lines else code}")
    return said


def _read(tool: "subprocess.Popen[bytes]", until: float) -> tuple[str, str]:
    """Return both streams once the program has closed them."""
    texts = {stream.fileno(): bytearray() for stream in (tool.stdout, tool.stderr) if stream}
    with selectors.DefaultSelector() as open_ones:
        for stream in texts:
            open_ones.register(stream, selectors.EVENT_READ)
        while open_ones.get_map():
            for key, _ in open_ones.select(max(0.0, until - time.monotonic())):
                part = os.read(key.fd, 1 << 16)
                texts[key.fd] += part
                if not part:
                    open_ones.unregister(key.fd)
            if time.monotonic() > until or max(map(len, texts.values())) > MAX_BYTES:
                raise ToolError(f"{tool.args[0]} did not end within {SECONDS:g} s and {MAX_BYTES:,} bytes")  # pyright: ignore
    said, complaint = (text.decode("utf-8", "replace") for text in texts.values())
    return said, complaint
