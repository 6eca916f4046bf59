"""With llama.cpp's own programs: two RPC servers on loopback split one model as it was planned."""

import re
import shutil
from pathlib import Path

import pytest

from meshwise import make_gguf
from meshwise.engines.process import Program, free_port, started
from meshwise.gguf_header import read
from meshwise.kv import Held, layer_caches
from meshwise.placement import split_layers
from meshwise.quant import find_format, weights
from meshwise.runtime import find_runtime
from meshwise.serve_run import RPC_NAMES

SERVER = shutil.which("llama-server") or ""
RPC = next(filter(None, map(shutil.which, RPC_NAMES)), "")


@pytest.mark.skipif(not (SERVER and RPC), reason="llama.cpp's llama-server and rpc-server are not on PATH")
def test_planned_bytes_per_device_are_what_llamacpp_prints(tmp_path: Path) -> None:
    """Weights and cache of each RPC device, to 1 MiB."""
    file = tmp_path / "m.gguf"
    make_gguf.write(make_gguf.prepare("smollm2-135m", find_format("q4_k_m")), file)
    ports = [free_port(), free_port(), free_port()]
    rpc = [Program(name="rpc", command=(RPC, "-H", "127.0.0.1", "-p", str(p)), port=p, health="") for p in ports[:2]]
    where = ",".join(f"127.0.0.1:{port}" for port in ports[:2])
    flags = ("-m", str(file), "--rpc", where, "-ngl", "99", "-sm", "layer", "-ts", "1,1", "-c", "2048", "-np", "1", "-fa", "on")
    server = Program(name="llama-server", command=(SERVER, *flags, "--port", str(ports[2])), port=ports[2])
    with started([*rpc, server], print, 120) as up:
        log = "\n".join(up[-1].log)
    model, runtime = read(file), find_runtime("llama.cpp")
    caches = layer_caches(model, runtime, Held(context=2048, sequences=1, key="f16", value="f16"))
    planned = split_layers(weights(model), caches, [1.0, 1.0]).devices
    for port, device in zip(ports, planned, strict=False):
        for kind, size in (("model", device.weights), ("KV", device.cache)):
            found = re.search(rf"RPC\d*\[[^\]]*:{port}\] +{kind} buffer size = +([\d.]+) MiB", log)
            assert found, f"no {kind} buffer of the device at {port} in the log"
            assert float(found[1]) == pytest.approx(size / 2**20, abs=1)
