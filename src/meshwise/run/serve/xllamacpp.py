"""llama.cpp inside Python: `python -m meshwise.run.serve.xllamacpp` takes llama-server's flags and serves with the wheel xllamacpp."""

import argparse
import importlib.util
import signal
import sys
from typing import Any

SPLITS = {"none": "NONE", "layer": "LAYER", "row": "ROW", "tensor": "TENSOR"}


def installed() -> bool:
    return importlib.util.find_spec("xllamacpp") is not None


def parsed(words: list[str]) -> argparse.Namespace:
    """The flags of llama-server that plans use."""
    found = argparse.ArgumentParser(prog="xllamacpp", allow_abbrev=False)
    found.add_argument("-m", dest="model", required=True)
    found.add_argument("-ngl", dest="layers", type=int, default=0)
    found.add_argument("-sm", dest="split", choices=list(SPLITS), default="layer")
    found.add_argument("-ts", dest="shares", default="")
    found.add_argument("-c", dest="context", type=int, default=4096)
    found.add_argument("-np", dest="users", type=int, default=1)
    found.add_argument("-ctk", dest="keys", default="f16")
    found.add_argument("-ctv", dest="values", default="f16")
    found.add_argument("-fa", dest="flash", choices=["on", "off", "auto"], default="auto")
    found.add_argument("-t", dest="threads", type=int, default=-1)
    found.add_argument("--host", default="127.0.0.1")
    found.add_argument("--port", type=int, default=8080)
    return found.parse_args(words)


def parameters(asked: argparse.Namespace) -> Any:
    """The same as xllamacpp's own record."""
    import xllamacpp  # pyright: ignore[reportMissingTypeStubs]

    library: Any = xllamacpp
    found = library.CommonParams()
    found.model.path = asked.model
    found.n_gpu_layers = asked.layers
    found.split_mode = getattr(library.llama_split_mode, f"LLAMA_SPLIT_MODE_{SPLITS[asked.split]}")
    if asked.shares:
        shares = [float(share) for share in asked.shares.split(",")]
        found.tensor_split = shares + [0.0] * (len(found.tensor_split) - len(shares))
    found.n_ctx, found.n_parallel = asked.context, asked.users
    found.cache_type_k = getattr(library.ggml_type, f"GGML_TYPE_{asked.keys.upper()}")
    found.cache_type_v = getattr(library.ggml_type, f"GGML_TYPE_{asked.values.upper()}")
    flash = {"on": "ENABLED", "off": "DISABLED", "auto": "AUTO"}[asked.flash]
    found.flash_attn_type = getattr(library.llama_flash_attn_type, f"LLAMA_FLASH_ATTN_TYPE_{flash}")
    found.cpuparams.n_threads = asked.threads
    found.hostnames, found.port = [asked.host], asked.port
    found.verbosity = 4  # with what it allocates, as llama-server says it
    found.fit_params = False  # the split is the plan's, not what llama.cpp would choose
    found.cache_ram_mib = 0  # no prompt is kept for later: it would be memory that no plan counts
    return found


def main(words: list[str]) -> int:
    """Serves until it is told to end."""
    asked = parsed(words)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    try:
        import xllamacpp  # pyright: ignore[reportMissingTypeStubs]

        library: Any = xllamacpp
        server = library.Server(parameters(asked))
    except Exception as error:  # whatever the library raises, what it said stands above in the log
        print(f"error: {' '.join(str(error).split()) or type(error).__name__}", flush=True)
        return 1
    print(f"listening on {server.listening_address}", flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
