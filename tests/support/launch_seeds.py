"""Launch files of every program and launcher, by how they are written: what mutations start from."""

from collections.abc import Iterator
from functools import cache

import yaml

from meshwise import api
from meshwise.errors import UserError
from meshwise.programs import setup as setups
from meshwise.programs.program import Job, Setup, Written, launchers, programs
from meshwise.programs.read.files import kind_of
from meshwise.programs.rl import facts
from meshwise.programs.serve import setup as serve_setups
from meshwise.programs.source import Source
from support.launch_files import FIXTURES, base, with_layout

FORMS = "forms.yaml"
ONE = {"tp": 1, "pp": 1, "cp": 1, "ep": 1, "dp_replicate": 1, "dp_shard": 64}
ENGINES = {"vllm": "1xh100-sxm", "sglang": "1xh100-sxm", "tensorrt-llm": "1xh100-sxm", "llama.cpp": "1xh100-sxm", "ollama": "1xh100-sxm",
           "mlx": "1xm3-ultra"}  # fmt: skip
ROLLOUTS = {"verl": "split", "nemo-rl": "split", "openrlhf": "split", "trl": "colocated"}
DOCKERFILE = """FROM vllm/vllm-openai:v0.11.0
ENV HF_HOME=/cache TP=8
COPY start.sh /start.sh
EXPOSE 8000
ENTRYPOINT ["vllm", "serve", "meta-llama/Llama-3.3-70B-Instruct"]
CMD ["--tensor-parallel-size", "8", "--max-model-len", "8192"]
"""


@cache
def launch_files() -> tuple[tuple[str, str], ...]:
    """Return names and texts: the fixtures, the forms that people start, and what each program and launcher writes."""
    forms = yaml.safe_load((FIXTURES / FORMS).read_text(encoding="utf-8"))
    fixtures = [(path.name, path.read_text(encoding="utf-8")) for path in sorted(FIXTURES.iterdir()) if path.name != FORMS]
    return (*fixtures, *((form["file"], form["text"]) for form in forms), ("Dockerfile", DOCKERFILE), *sorted(set(_written())))


def _setups() -> Iterator[tuple[str, Setup]]:
    """Yield setups of plans, with the kind of program that they are for."""
    for name in ("dense", "bloom"):
        yield "train", base(name)
        yield "train", with_layout(base(name), ONE, recompute="full")
    for engine, on in ENGINES.items():
        yield "serve", serve_setups.of_plan(api.serve("llama-3.1-8b", on=on, engine=engine), 1)
    question = {"on": "2x8xh100-sxm", "batch": 64, "seq": 4096, "answer": "900:3072", "objective": "grpo"}
    for framework, mode in ROLLOUTS.items():
        yield "rl", facts.of_plan(api.rollouts("qwen2.5-7b", framework=framework, mode=mode, **question), 1)
    tuned = api.plan("llama-3.1-8b", on="1xh100-sxm", batch="16x2048", framework="unsloth", finetune="lora:16", top=3)
    yield "train", setups.of_plan(tuned, 1)


def _written() -> Iterator[tuple[str, str]]:
    """Yield the files of the first setup that each program can write, started by each launcher."""
    made = list(_setups())
    for program in programs().values():
        for setup in [setup for kind, setup in made if kind == program.kind and program.write]:
            try:
                written = program.write(setup)  # pyright: ignore[reportOptionalCall]
            except UserError:
                continue
            yield from written.files.items()
            for launcher in launchers().values():
                yield from launcher.write(_job(setup, written)).items()
            break
        else:
            assert program.write is None, f"no setup that {program.name} can write"


def _job(setup: Setup, written: Written) -> Job:
    return Job(
        name="job", nodes=setup.whole("nodes"), devices_per_node=setup.whole("devices_per_node"), command=written.command,
        starter=written.starter, environment=written.environment, others=written.others, header=setup.header, files=written.files,
        chip=setup.text("chip"),
    )  # fmt: skip


def seeds_of(kind: str) -> list[bytes]:
    """Return the files of one kind: as `kind_of` says, "json" for those of the trees, "" for all."""
    if kind == "json":
        return [text.encode() for name, text in launch_files() if name.endswith(".json")]
    return [text.encode() for name, text in launch_files() if not kind or kind_of(Source(name, text)) == kind]
