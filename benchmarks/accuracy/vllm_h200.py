"""vLLM's server on one GPU, asked by `meshwise bench` over loopback: `vllm_h200.py ROOT SECONDS MODEL:KV_GIB:RATE,RATE ...`.

ROOT has vLLM and what it needs (w/, site/, stubs/) and m/MODEL/config.json. All servers start at once with random weights, and are measured
one after another: prompts of one user, users in step, many short prompts at once, Poisson arrivals. MODEL+lora serves a random adapter too.
$OUT/vllm.jsonl has a line for every report of `bench`.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

ROOT, REPOSITORY, OUT = Path(sys.argv[1]), Path(__file__).parents[2], Path(os.environ.get("OUT", "."))
BEGAN, LIMIT = time.monotonic(), float(sys.argv[2])
LETTERS = "abcdefghijklmnopqrstuvwxyz"
RANK = 16
LOADED = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def seconds() -> float:
    return time.monotonic() - BEGAN


def write_tokenizer(folder: Path, vocabulary: int) -> None:
    """Write a tokenizer that joins pairs of letters, so that random words are different tokens; the others decode to some text."""
    pairs = [first + second for first in LETTERS for second in LETTERS]
    tokens = ["<unk>", "</s>", "Ġ", *LETTERS, *pairs]
    tokens += [f"<{i}>" for i in range(vocabulary - len(tokens))]
    model = {
        "type": "BPE",
        "vocab": {token: i for i, token in enumerate(tokens)},
        "merges": [[*pair] for pair in pairs],
        "unk_token": "<unk>",
    }
    split = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    text = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": split,
        "decoder": split,
        "post_processor": None,
    }
    (folder / "tokenizer.json").write_text(json.dumps(text | {"truncation": None, "padding": None, "model": model}))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "unk_token": "<unk>",
        "eos_token": "</s>",
        "model_max_length": 131072,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def write_adapter(folder: Path, config: dict[str, Any]) -> None:
    """Write an adapter of random weights for every product of the layers."""
    import torch
    from safetensors.torch import save_file

    hidden, inner = config["hidden_size"], config["intermediate_size"]
    size = config.get("head_dim") or hidden // config["num_attention_heads"]
    queries, keys = config["num_attention_heads"] * size, config["num_key_value_heads"] * size
    shapes = {"q": (hidden, queries), "k": (hidden, keys), "v": (hidden, keys), "o": (queries, hidden)}
    shapes |= {"gate": (hidden, inner), "up": (hidden, inner), "down": (inner, hidden)}
    tensors: dict[str, Any] = {}
    for layer in range(config["num_hidden_layers"]):
        for name, (into, out) in shapes.items():
            part = "self_attn" if name in "qkvo" else "mlp"
            stem = f"base_model.model.model.layers.{layer}.{part}.{name}_proj"
            tensors[f"{stem}.lora_A.weight"] = torch.randn(RANK, into, dtype=torch.bfloat16) / 64
            tensors[f"{stem}.lora_B.weight"] = torch.randn(out, RANK, dtype=torch.bfloat16) / 64
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    about = {
        "peft_type": "LORA",
        "r": RANK,
        "lora_alpha": RANK,
        "target_modules": LOADED,
        "bias": "none",
        "task_type": "CAUSAL_LM",
    }
    (folder / "adapter_config.json").write_text(json.dumps(about))


class Server:
    """One server, its log, and the address at which it answers."""

    def __init__(self, words: str, port: int) -> None:
        name, cache, rates = words.split(":")
        self.name, self.rates, self.port = name, [float(rate) for rate in rates.split(",")], port
        self.adapted = name.endswith("+lora")
        folder = ROOT / "m" / name.removesuffix("+lora")
        config = json.loads((folder / "config.json").read_text())
        write_tokenizer(folder, config["vocab_size"])
        flags = [
            "--model",
            str(folder),
            "--served-model-name",
            "base",
            "--load-format",
            "dummy",
            "--dtype",
            "bfloat16",
            "--port",
            str(port),
        ]
        flags += [
            "--host",
            "127.0.0.1",
            "--max-model-len",
            str(min(8192, config["max_position_embeddings"])),
            "--kv-cache-memory-bytes",
            str(int(float(cache) * 2**30)),
        ]
        flags += ["--gpu-memory-utilization", "0.03"]
        if self.adapted:
            adapter = folder / "adapter"
            if not adapter.exists():
                write_adapter(adapter, config)
            flags += ["--enable-lora", "--max-lora-rank", str(RANK), "--max-loras", "1", "--lora-modules", f"adapter={adapter}"]
        found = os.pathsep.join(str(ROOT / part) for part in ("w", "site", "stubs"))
        environment = os.environ | {
            "PYTHONPATH": found, "VLLM_CACHE_ROOT": str(ROOT / "cache"), "VLLM_USE_FLASHINFER_SAMPLER": "0", "VLLM_USE_DEEP_GEMM": "0",
            "VLLM_HOST_IP": "127.0.0.1", "GLOO_SOCKET_IFNAME": "lo", "NCCL_SOCKET_IFNAME": "lo", "VLLM_NO_USAGE_STATS": "1",
            "DO_NOT_TRACK": "1", "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false",
        }  # fmt: skip
        self.log = OUT / f"{name.replace('+', '-')}.log"
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", *flags]
        self.process = subprocess.Popen(
            command, stdout=self.log.open("w"), stderr=subprocess.STDOUT, env=environment, start_new_session=True
        )

    def answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=2) as reply:
                return reply.status == 200
        except OSError:
            return False

    def bench(self, *flags: str, model: str = "base") -> None:
        """Run `meshwise bench`, and keep its report as one line."""
        if seconds() > LIMIT:
            return
        packages = os.pathsep.join([str(REPOSITORY / "src"), str(REPOSITORY / ".gpu-packages"), str(ROOT / "site")])
        report = OUT / "report.json"
        report.unlink(missing_ok=True)
        command = [
            sys.executable,
            "-m",
            "meshwise",
            "bench",
            f"http://127.0.0.1:{self.port}",
            "--model",
            model,
            "--out",
            str(report),
            *flags,
        ]
        try:
            done = subprocess.run(
                command,
                capture_output=True,
                text=True,
                timeout=max(5.0, LIMIT + 20 - seconds()),
                env=os.environ | {"PYTHONPATH": packages},
            )
        except subprocess.TimeoutExpired:
            return
        print(f"{seconds():.0f} s {self.name} {model} {' '.join(flags)}\n{done.stdout[-900:]}{done.stderr[-300:]}", flush=True)
        if report.exists():
            line = {"model": self.name, "asked": model, "flags": flags, "at": seconds(), "report": json.loads(report.read_text())}
            with (OUT / "vllm.jsonl").open("a") as file:
                file.write(json.dumps(line) + "\n")

    def measure(self) -> None:
        self.bench("--prompt", "512", "--output", "128", "--users", "1,8,32,64", "--repeats", "1")
        for rate in self.rates:
            self.bench("--prompt", "512", "--output", "128", "--rate", f"{rate:g}", "--requests", f"{round(8 * rate)}")
        self.bench("--prompt", "64,256,1k,4k", "--output", "8", "--users", "1", "--repeats", "2")
        self.bench("--prompt", "64", "--output", "64", "--users", "64", "--repeats", "1")
        if self.adapted:
            self.bench("--prompt", "512", "--output", "128", "--users", "1,8,32", "--repeats", "1", model="adapter")

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)


def main() -> None:
    servers = [Server(words, 8100 + i) for i, words in enumerate(sys.argv[3:])]
    waiting = list(servers)
    try:
        while waiting and seconds() < 0.6 * LIMIT:
            time.sleep(1)
            for server in list(waiting):
                if server.answers() or server.process.poll() is not None:
                    waiting.remove(server)
                    print(f"{seconds():.0f} s {server.name} {'is up' if server.process.poll() is None else 'ended'}", flush=True)
        for server in servers:
            if server.process.poll() is None and server not in waiting:
                server.measure()
                server.end()
            else:
                print(server.name, *server.log.read_text(errors="replace").splitlines()[-12:], sep="\n  ")
    finally:
        for server in servers:
            server.end()
    print(f"end {seconds():.0f} s")


if __name__ == "__main__":
    main()
