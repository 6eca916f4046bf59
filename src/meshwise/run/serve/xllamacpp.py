"""llama.cpp inside Python: `python -m meshwise.run.serve.xllamacpp` takes the flags of llama-server and serves with the wheel xllamacpp."""

import argparse
import importlib.util
import signal
import sys
from typing import Any

SPLITS = {"none": "NONE", "layer": "LAYER", "row": "ROW", "tensor": "TENSOR"}


def installed() -> bool:
    return importlib.util.find_spec("xllamacpp") is not None


def parse(words: list[str]) -> argparse.Namespace:
    """Read the flags of llama-server that plans use."""
    parser = argparse.ArgumentParser(prog="xllamacpp", allow_abbrev=False)
    parser.add_argument("-m", dest="model", required=True)
    parser.add_argument("-ngl", dest="layers", type=int, default=0)
    parser.add_argument("-sm", dest="split", choices=list(SPLITS), default="layer")
    parser.add_argument("-ts", dest="shares", default="")
    parser.add_argument("-c", dest="context", type=int, default=4096)
    parser.add_argument("-np", dest="users", type=int, default=1)
    parser.add_argument("-ctk", dest="keys", default="f16")
    parser.add_argument("-ctv", dest="values", default="f16")
    parser.add_argument("-fa", "--flash-attn", dest="flash", choices=["on", "off", "auto"], default="auto")
    parser.add_argument("-t", "--threads", dest="threads", type=int, default=-1)
    parser.add_argument("-b", "--batch-size", dest="batch", type=int, default=2048)
    parser.add_argument("-ub", "--ubatch-size", dest="ubatch", type=int, default=512)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8080)
    return parser.parse_args(words)


def parameters(given: argparse.Namespace) -> Any:
    """Convert the flags into xllamacpp's own record."""
    import xllamacpp  # pyright: ignore[reportMissingTypeStubs]

    library: Any = xllamacpp
    params = library.CommonParams()
    params.model.path = given.model
    params.n_gpu_layers = given.layers
    params.split_mode = getattr(library.llama_split_mode, f"LLAMA_SPLIT_MODE_{SPLITS[given.split]}")
    if given.shares:
        shares = [float(share) for share in given.shares.split(",")]
        params.tensor_split = shares + [0.0] * (len(params.tensor_split) - len(shares))
    params.n_ctx, params.n_parallel = given.context, given.users
    params.cache_type_k = getattr(library.ggml_type, f"GGML_TYPE_{given.keys.upper()}")
    params.cache_type_v = getattr(library.ggml_type, f"GGML_TYPE_{given.values.upper()}")
    flash = {"on": "ENABLED", "off": "DISABLED", "auto": "AUTO"}[given.flash]
    params.flash_attn_type = getattr(library.llama_flash_attn_type, f"LLAMA_FLASH_ATTN_TYPE_{flash}")
    params.cpuparams.n_threads = given.threads
    params.n_batch, params.n_ubatch = max(given.batch, given.ubatch), given.ubatch
    params.hostnames, params.port = [given.host], given.port
    params.verbosity = 4  # logs allocations, as llama-server -lv 4 does
    params.fit_params = False  # keep the plan's layout instead of one that llama.cpp chooses
    params.cache_ram_mib = 0  # keep no prompts of other requests: no plan counts that memory
    return params


def main(words: list[str]) -> int:
    """Serve until SIGTERM or SIGINT."""
    given = parse(words)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGINT})
    try:
        import xllamacpp  # pyright: ignore[reportMissingTypeStubs]

        library: Any = xllamacpp
        server = library.Server(parameters(given))
    except Exception as error:  # whatever the library raises, its log has the details
        print(f"error: {' '.join(str(error).split()) or type(error).__name__}", flush=True)
        return 1
    print(f"listening on {server.listening_address}", flush=True)
    signal.sigwait({signal.SIGTERM, signal.SIGINT})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
