"""JSON Schemas of what `--json` prints and of the files that people write: `python tools/schemas.py` renews src/meshwise/data/schemas;
with names, those alone; `--quick` leaves out those whose commands train, measure or fit.

A schema comes from the types of a record's fields, with their docstrings, where a result is printed as the record it is. Other results are
described from what commands print: a key that every one of them has is required, and its types are those that were seen. Further keys are
always allowed: they may be added, while those that are required stay.
"""

import ast
import inspect
import json
import os
import shlex
import subprocess
import sys
import types
from collections.abc import Collection, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

ROOT = Path(__file__).parent.parent
FOLDER = ROOT / "src" / "meshwise" / "data" / "schemas"
VERSION = 1
"""Raised when a key goes or changes its meaning; an added key does not raise it."""
DIALECT = "https://json-schema.org/draft/2020-12/schema"
PLAN = "plan llama-debug --on 1x8xh100-sxm --batch 64 --seq 512"
FINETUNE = "plan llama-3-8b --on 1xrtx4090 --batch 8 --finetune qlora:16"
SERVE = "serve llama-3.1-8b:fp8 --on 1xl40s --users 4"
SERVED = "serve llama-3.1-8b:fp8 --ttft 1s --cheapest"
REPLAY = "replay llama-3.1-8b:fp8 --on 1xh100-sxm --make conversation --rate 1/s --hours 0.05"
CHEAPEST = "plan llama-3-8b --batch 1M --tokens 10B --within 30d --cheapest"
FIXTURES = "tests/fixtures"


TABLES = {"type": "array", "items": {"type": "object"}}
BESIDE = {
    "file-framework": {
        "releases": TABLES | {"description": "Facts that changed with a release: its name, its date, and those facts."},
        "variants": TABLES | {"description": "Programs that train in the same way but for a few facts."},
    }
}
"""Tables of a file that are read beside the fields of its record."""


@dataclass(frozen=True)
class Form:
    """One form of output: its name, and commands that print it. `slow`: they train, measure or fit."""

    name: str
    title: str
    commands: tuple[str, ...]
    slow: bool = False


SETUP = (
    f"{PLAN} --out {{work}}/plan.json",
    f"{PLAN.replace('h100-sxm', 'h200')} --out {{work}}/other.json",
    f"{SERVE} --out {{work}}/serve.json",
)
"""Commands that write the files which others read."""
SLOW_SETUP = (
    "make-gguf llama-debug --out {work}/tiny.gguf", "run llama-debug --steps 3 --save --out {work}/run",
    "bench {work}/tiny.gguf --users 1 --prompt 16 --output 8 --repeats 1 --out {work}/bench.json",
)  # fmt: skip
FORMS = (
    Form("count", "Counts of models, one by one", ("count gpt2 deepseek-v3 mamba2-1.3b", "count llama-3-8b --on 8xh100-sxm --batch 4M")),
    Form("explain", "Why a layout won", ("explain {work}/plan.json", "explain {work}/plan.json --versus tp=8")),
    Form("explain-two", "How two plans differ", ("explain {work}/plan.json {work}/other.json",)),
    Form("plan-answers", "A plan of training on generated answers", (
        "plan qwen3-8b --on 8xh100-sxm --batch 64 --objective grpo", "plan qwen3-8b --on 2x8xh100-sxm --batch 64 --objective ppo")),
    Form("plan-vary", "A training question at many points", (f"{PLAN} --vary nodes=1..4", f"{PLAN} --vary chip=h100-sxm,h200")),
    Form("plan-cheapest", "The cheapest chip and number of nodes", (f"{CHEAPEST} --vary chip=h100-sxm,h200",)),
    Form("plan-shapes", "The fastest shapes of a model", ("plan --params 1B --on 8xh100-sxm --batch 512 --seq 2k",)),
    Form("serve-vary", "A serving question at many points", (f"{SERVE} --vary users=1..8", f"{SERVE} --vary gpus=1..2")),
    Form("serve-cheapest", "The fewest and cheapest devices for a load", (f"{SERVED} --users 64", f"{SERVED} --rate 2/s")),
    Form("serve-front", "The Pareto front of a deployment", ("serve llama-3.1-8b:fp8 --on 1xl40s --front",)),
    Form("replay", "Timed traffic through a deployment", (REPLAY, f"{REPLAY} --ttft 1s@p95 --copies 2")),
    Form("replay-compared", "A replay and what it could be instead", (f"{REPLAY} --what-if",)),
    Form("pick", "Models for a machine", ("pick --on 1xrtx3090 --for code", "pick --on 2xrtx3090 --for chat --context 32k")),
    Form("pick-machines", "Machines for a budget", ("pick --buy 2000 --for chat",)),
    Form("check", "A verdict on launch files", (
        f"check {FIXTURES}/launch/axolotl-llama3.yml --on 8xh100-sxm", f"check {FIXTURES}/launch/titan-llama3-70b.toml --on h100-sxm",
        f"check {FIXTURES}/launch/vllm-70b.sh --on 4xh100-sxm", f"check {FIXTURES}/launch/broken.sbatch --on a100-80gb-sxm")),
    Form("audit", "Derived figures and contradictions of reported results", (
        "audit --params 124M --seq 128 --batch 16/gpu --on 8xh100-sxm --step 7.5s --mfu 40%",
        f"audit {FIXTURES}/audit/torchtitan-8b.log --on 8xh100-sxm", f"audit {FIXTURES}/audit/llama-bench.md")),
    Form("doctor", "Why a run is slow", (f"doctor {FIXTURES}/doctor/clean.json.gz", f"doctor {FIXTURES}/doctor/slow-loader.json.gz")),
    Form("export", "A plan as the files of a program", ("export {work}/plan.json --to megatron", "export {work}/serve.json --to vllm")),
    Form("validate", "Scores of predictions on a table", (
        "validate korthikanti2022_iteration", "validate bloom_prequel", "validate llamacpp_gb10")),
    Form("validate-answers", "Scores of steps on generated answers", ("validate rl_steps",)),
    Form("show-chips", "Chips, or one", (
        "show chips", *(f"show chips {chip}" for chip in ("h100-sxm", "rtx4090", "tpu-v5p", "mi300x", "m4-max")))),
    Form("show-clusters", "Clusters, or one", ("show clusters", "show clusters jean-zay")),
    Form("show-models", "Models", ("show models gpt2", "show models llama-3")),
    Form("show-frameworks", "Training frameworks, or one", ("show frameworks", "show frameworks torchtitan", "show frameworks maxtext")),
    Form("show-calibrations", "Calibrations, or one", ("show calibrations", "show calibrations a100-megatron")),
    Form("skill", "The page for agents", ("skill", "skill --out {work}/skills")),
    Form("make-gguf", "A GGUF file that was written", ("make-gguf llama-debug --header-only --out {work}/head.gguf",)),
    Form("run-dry", "A run that is not started", ("run llama-debug --dry-run --out {work}/dry",)),
    Form("calibrate", "A fit, and its scores on rows left out", ("calibrate korthikanti2022_iteration",), slow=True),
    Form("run", "The measured row of a run", ("run llama-debug --steps 3 --out {work}/run2",), slow=True),
    Form("generate", "Generated text, or the loss of one", (
        "generate llama-debug --weights {work}/run/weights --tokens 4",
        "generate llama-debug --weights {work}/run/weights --eval CITATION.cff"), slow=True),
    Form("bench", "A measured endpoint", ("bench {work}/tiny.gguf --users 1,2 --prompt 16 --output 8 --repeats 1",), slow=True),
    Form("share", "Rows of a bench", ("share {work}/bench.json --folder {work}/shared",), slow=True),
    Form("tune-replay", "The loop of tune on a table", ("tune --replay nanotron_h100_small --runs 2 --seeds 2",), slow=True),
    Form("preflight", "Is a cluster what it says it is", (f"preflight --read {FIXTURES}/preflight",)),
    Form("probe", "Rows of a probe by chip", ("probe --seconds 2 --device cpu",), slow=True),
)  # fmt: skip


def records_by_form() -> dict[str, tuple[type, str, bool]]:
    """Return by form a record, its title, and whether people write it as TOML."""
    from meshwise.catalogue.chips import Chip
    from meshwise.catalogue.clusters import ClusterFile
    from meshwise.catalogue.engines import Engine
    from meshwise.catalogue.frameworks import Framework
    from meshwise.catalogue.installed import Installed
    from meshwise.plan.serve.plan import ServePlan
    from meshwise.plan.train.plan import TrainPlan

    return {
        "plan": (TrainPlan, "A plan of training: plan --json, plan.json", False),
        "serve": (ServePlan, "A plan of serving: serve --json, plan.json", False),
        "about": (Installed, "What is installed and seen: about --json", False),
        "file-chip": (Chip, "A chip: chips/NAME.toml", True),
        "file-cluster": (ClusterFile, "A cluster: clusters/NAME.toml", True),
        "file-framework": (Framework, "A training framework: frameworks/NAME.toml", True),
        "file-engine": (Engine, "A serving engine: engines/NAME.toml", True),
    }  # fmt: skip


# From types.


def of_record(cls: type, toml: bool) -> dict[str, Any]:
    """Return the schema of a record: one property per field, with the docstring that stands below it."""
    hints, about = get_type_hints(cls, include_extras=True), field_docs(cls)
    properties: dict[str, Any] = {}
    required: list[str] = []
    for one in fields(cls):
        if toml and (not one.init or one.metadata.get("derived")):
            continue
        key = one.metadata.get("json", one.name)
        properties[key] = of_type(hints[one.name], toml) | ({"description": about[one.name]} if one.name in about else {})
        if not toml or (one.default is MISSING and one.default_factory is MISSING):
            required.append(key)
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": not toml}


def of_type(hint: Any, toml: bool) -> dict[str, Any]:
    """Return the schema of values of a type."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:  # a quantity: text with a unit in a file, a number in JSON
        return {"type": ["string", "number"]} if toml else {"type": "number"}
    if origin in (Union, types.UnionType):
        return {"anyOf": [of_type(arm, toml) for arm in inner]}
    if origin is Literal:
        return {"enum": list(inner)}
    if origin in (tuple, list):
        return {"type": "array", "items": of_type(inner[0], toml) if inner else {}}
    if origin is not None and isinstance(origin, type) and issubclass(origin, Mapping):
        return {"type": "object", "additionalProperties": of_type(inner[1], toml)}
    if is_dataclass(hint):
        return of_record(hint, toml)  # pyright: ignore[reportArgumentType]
    plain = {str: "string", int: "integer", float: "number", bool: "boolean", types.NoneType: "null"}
    return {"type": plain[hint]} if hint in plain else {}


@cache
def field_docs(cls: type) -> dict[str, str]:
    """Return the docstrings that stand below the fields of a class and of those it extends."""
    found: dict[str, str] = {}
    for each in reversed(cls.__mro__):
        if not is_dataclass(each):
            continue
        (body,) = [
            node.body
            for node in ast.parse(inspect.cleandoc("\n" + inspect.getsource(each))).body
            if isinstance(node, ast.ClassDef)
        ]
        for field, below in pairwise(body):
            if isinstance(field, ast.AnnAssign) and isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant):
                found[field.target.id] = " ".join(str(below.value.value).split())  # pyright: ignore[reportAttributeAccessIssue]
    return found


# From what commands print.


def of_value(value: Any) -> dict[str, Any]:
    """Return the schema of one value."""
    if isinstance(value, dict):
        return {"type": "object", "properties": {key: of_value(item) for key, item in value.items()}, "required": sorted(value)}
    if isinstance(value, list):
        items: dict[str, Any] = {}
        for item in value:
            items = both(items, of_value(item)) if items else of_value(item)
        return {"type": "array", "items": items}
    kinds = {bool: "boolean", int: "number", float: "number", str: "string", types.NoneType: "null"}
    return {"type": kinds[type(value)]}


def both(a: dict[str, Any], b: dict[str, Any]) -> dict[str, Any]:
    """Return a schema of the values of both."""
    if not a or not b:
        return a or b
    kinds = sorted({*_kinds(a), *_kinds(b)})
    made: dict[str, Any] = {"type": kinds[0] if len(kinds) == 1 else kinds}
    objects = [each for each in (a, b) if "object" in _kinds(each)]
    if objects:
        keys = dict.fromkeys(key for each in objects for key in each["properties"])
        shapes = {key: [each["properties"][key] for each in objects if key in each["properties"]] for key in keys}
        made["properties"] = {key: both(found[0], found[-1]) if len(found) > 1 else found[0] for key, found in shapes.items()}
        made["required"] = sorted(set.intersection(*(set(each["required"]) for each in objects)))
    arrays = [each["items"] for each in (a, b) if "array" in _kinds(each)]
    if arrays:
        made["items"] = both(arrays[0], arrays[-1])
    return made


def _kinds(schema: dict[str, Any]) -> list[str]:
    return schema["type"] if isinstance(schema["type"], list) else [schema["type"]]


def printed(line: str, work: Path) -> Any:
    """Return the JSON that a command prints; with the plan on standard output of those that have no --json here."""
    words = [sys.executable, "-m", "meshwise", *shlex.split(line.format(work=work)), "--json"]
    environment = os.environ | {"MESHWISE_HOME": str(work / "home")}
    done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1) or not done.stdout:
        raise SystemExit(f"meshwise {line} --json: exit {done.returncode}: {done.stderr}")
    return json.loads(done.stdout)


def made(slow: bool = True, only: Collection[str] = ()) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield every schema by its name."""
    for name, (cls, title, toml) in records_by_form().items():
        if not only or name in only:
            yield name, whole(name, cls, title, toml)
    with TemporaryDirectory(prefix="meshwise-") as folder:
        work = Path(folder)
        for line in (*SETUP, *(SLOW_SETUP if slow else ())):
            printed(line, work)
        for form in FORMS:
            if (form.slow and not slow) or (only and form.name not in only):
                continue
            print(form.name, file=sys.stderr, flush=True)
            schema: dict[str, Any] = {}
            for line in form.commands:
                schema = both(schema, of_value(printed(line, work)))
            yield form.name, head(form.name, form.title) | schema


def whole(name: str, cls: type, title: str, toml: bool) -> dict[str, Any]:
    """Return the schema of a record, as its file has it."""
    made = head(name, title) | of_record(cls, toml)
    made["properties"] |= BESIDE.get(name, {})
    if not toml and hasattr(cls, "format"):
        made["properties"] = {"format": {"const": cls.format}} | made["properties"]  # pyright: ignore[reportAttributeAccessIssue]
    return made


def head(name: str, title: str) -> dict[str, Any]:
    return {"$schema": DIALECT, "$id": f"urn:meshwise:schema:{VERSION}:{name}", "title": title}


def main() -> None:
    FOLDER.mkdir(exist_ok=True)
    only = [word for word in sys.argv[1:] if word != "--quick"]
    for name, schema in made("--quick" not in sys.argv, only):
        path = FOLDER / f"{name}.json"
        path.write_text(json.dumps(schema, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
