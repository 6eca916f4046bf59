"""CONTRIBUTING.md is true: its recipes are followed with throw-away files, in the user's folder or in a folder of ours."""

import json
import re
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from importlib import import_module
from pathlib import Path

import pytest

import meshwise as mw
from meshwise.audit.check.ask import CheckAsk
from meshwise.audit.check.judge import judge
from meshwise.calibrate.serve.validate import ServeValidation
from meshwise.catalogue.files import BUILT_IN
from meshwise.cost.axes import AXES
from meshwise.cost.layout import Layouts
from meshwise.plan.ask import ServeAsk, TrainAsk
from meshwise.plan.fields import asked, parameters, question, whole
from meshwise.plan.serve import plan as serving
from meshwise.plan.train.plan import TrainPlan, make
from meshwise.programs import engines, program
from meshwise.programs.logs import detect
from meshwise.programs.read.files import read_sources
from meshwise.programs.source import Source
from meshwise.programs.write import export
from meshwise.run.serve import programs as processes
from meshwise.run.serve.ask import ServeRun
from meshwise.run.serve.deployment import deployment
from meshwise.workers.trainer.contract.models import registry
from support.engines import script

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
SECTIONS = {part.split("\n")[0]: part for part in TEXT.split("\n## ")[1:]}
Add = Callable[[str, str, str], None]
ELSEWHERE = (
    "Published scores and weights of a model: one file",
    "A formula, a coefficient, a part of the step",
    "A rule of `audit`: one function",
    "A verb, a view, a page",
    "A change that moves predictions",
    "A change that should move no number",
    "Style",
)
"""Headings whose recipe is not a file of its own; tests of their packages and `make check` hold them."""


def section(start: str) -> str:
    (text,) = (text for heading, text in SECTIONS.items() if heading.startswith(start))
    return text


def toml(start: str) -> str:
    """The first TOML of a section."""
    return section(start).split("```toml\n")[1].split("```")[0]


@pytest.fixture
def added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Add]:
    """A function that adds a file to a folder of ours, for one test."""
    before = set(sys.modules)

    def forget() -> None:
        for cached in (program.programs, program.launchers, registry.families):
            cached.cache_clear()

    def add(package: str, name: str, text: str) -> None:
        (tmp_path / package).mkdir(exist_ok=True)
        (tmp_path / package / f"{name}.py").write_text(text)
        module = import_module(package)
        monkeypatch.setattr(module, "__path__", [*module.__path__, str(tmp_path / package)])
        forget()

    yield add
    forget()
    for name in set(sys.modules) - before:
        if "example" in name:
            del sys.modules[name]


@pytest.fixture(scope="module")
def plan() -> TrainPlan:
    return make(
        TrainAsk(model="llama-3-8b", on="2x8xh100-sxm", batch="128x4096", framework="megatron", fix=("tp=2", "pp=2"), top=1)
    )


# Data.


def test_a_chip_is_one_file(home: Path) -> None:
    text = toml("A chip").replace("H200 SXM", "Example 9000").replace("h200-141gb", "example-one")
    (home / "chips" / "example-9000.toml").write_text(text)
    made = mw.plan("llama-3-8b", on="8xexample-one", batch=64)
    assert made.cluster["chip"] == "Example 9000"


def test_a_cluster_is_one_file(home: Path) -> None:
    head = 'name = "Example"\nnodes = 32\nchips = "8xa100-80gb-sxm"\n[network]\nname = "HDR"\nbandwidth = "200GB/s"\n'
    tail = '[[sources]]\ntitle = "a page"\nurl = "https://example.org"\n'
    (home / "clusters" / "example.toml").write_text(head + toml("A cluster") + tail)
    assert mw.plan("llama-3-8b", on="example:4", batch=64).cluster["devices"] == 32


def test_a_model_is_one_file(home: Path) -> None:
    values = json.loads((BUILT_IN / "models" / "llama-3-8b.json").read_text())
    ours = json.loads("{" + section("A model:").split("```json\n")[1].split("```")[0] + "}")
    values |= {"_name_or_path": "example/example-16b", "num_hidden_layers": 64, **ours}
    (home / "models" / "example-16b.json").write_text(json.dumps(values))
    wide, usual = (mw.find_model(name).params for name in ("example-16b", "llama-3-8b"))
    assert 1.8 * usual < wide < 2 * usual


def test_a_model_type_of_the_planner_is_one_file(home: Path, tmp_path: Path) -> None:
    (home / "architectures").mkdir()
    (home / "architectures" / "example.toml").write_text('like = "llama"\n')
    values = json.loads((BUILT_IN / "models" / "llama-3-8b.json").read_text()) | {"model_type": "example"}
    (tmp_path / "config.json").write_text(json.dumps(values))
    assert mw.find_model(str(tmp_path / "config.json")).params == mw.find_model("llama-3-8b").params


def test_a_training_framework_is_one_file(home: Path) -> None:
    text = (BUILT_IN / "frameworks" / "nanotron.toml").read_text().replace('name = "nanotron"', 'name = "Example"')
    (home / "frameworks" / "example.toml").write_text(text)
    assert mw.plan("llama-3-8b", on="8xh100-sxm", batch=64, framework="example").framework == "Example"


def test_a_table_of_measurements_has_the_columns_that_are_named(tmp_path: Path) -> None:
    columns = re.findall(r"`([^`]*)`", section("Measurements"))[0].replace("\n", " ").split(", ")
    row = dict.fromkeys(columns, "1") | {
        "n_gpus": "8",
        "gpu": "a100-80gb-sxm",
        "dp": "8",
        "global_batch_seqs": "64",
        "seq_len": "2048",
    }
    row |= {"d_model": "2048", "n_layers": "24", "n_heads": "16", "sec_per_iter": "3.0"}
    (tmp_path / "runs.csv").write_text("\n".join([",".join(row), ",".join(row.values())]) + "\n")
    assert len(mw.validate(tmp_path / "runs.csv").rows()) == 1


# Files in folders of ours.


def test_a_model_family_of_the_trainer_is_one_module(added: Add) -> None:
    text = """
from meshwise.workers.trainer.contract.models.keys import llama_like
from meshwise.workers.trainer.contract.models.registry import Family

FAMILY = Family(model_types=("example",), describe=llama_like)
"""
    added("meshwise.workers.trainer.models.families", "example", text)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48, "vocab_size": 256}
    assert registry.unsupported(sizes | {"model_type": "example"}) == ""


PROGRAM = """
from meshwise.programs import forms
from meshwise.programs.program import Key, Program, Written

KEYS = tuple(Key(fact, f"degrees.{fact}", write="always") for fact in ("tp", "pp", "dp", "mbs", "batch", "seq"))


def write(setup):
    return Written({"example.yaml": forms.yaml_text(PROGRAM.settings(setup.values), setup.header)}, ("example.py", "example.yaml"))


def recognises(settings, source, script):
    return 20 if any(one.key == "degrees.tp" for one in settings) else 0


PROGRAM = Program(
    name="example-2.0", title="Example", version="2.0", framework="megatron", form="yaml", keys=KEYS, write=write, recognises=recognises
)
"""


def test_a_program_is_one_file(added: Add, plan: TrainPlan) -> None:
    added("meshwise.programs.train", "example_20", PROGRAM)
    made = export(plan, "example-2.0")
    facts = read_sources([Source("example.yaml", made.files["example.yaml"])], {}).facts
    assert [facts.whole(name) for name in ("tp", "pp", "dp", "seq")] == [2, 2, 4, 4096]


def test_a_program_is_named_like_its_file() -> None:
    """So that `--to` loads the one that it names."""
    assert all(program.find_program(name) is one for name, one in program.programs().items())
    ours = {module.partition(".programs.")[2] for module in sys.modules if module.startswith("meshwise.programs.")}
    assert ours >= {"train.megatron", "serve.llamacpp"}


def test_a_launcher_is_one_file(added: Add, plan: TrainPlan) -> None:
    text = """
from meshwise.programs.launch import script
from meshwise.programs.program import Launcher

LAUNCHER = Launcher(
    name="example", title="Example", version="1", start="example run.sh",
    write=lambda job: {"run.sh": "\\n".join(script.lines(job, {"NODE_RANK": "$EXAMPLE_RANK"}))},
)
"""
    added("meshwise.programs.launch", "example", text)
    made = export(plan, "megatron", "example")
    assert (made.start, "$EXAMPLE_RANK" in made.files["run.sh"]) == ("example run.sh", True)


def test_a_log_format_is_one_file(added: Add, tmp_path: Path) -> None:
    text = """
from meshwise.runs.reading import Reading

name, order = "example", 5


def matches(head):
    return head.startswith("example log")


def read(lines):
    return Reading("example")
"""
    added("meshwise.programs.logs.formats", "example", text)
    (tmp_path / "a.log").write_text("example log\n")
    assert detect.read_file(tmp_path / "a.log").format == "example"


def test_a_serving_engine_is_two_data_files_and_a_program(home: Path, added: Add, tmp_path: Path) -> None:
    """A copy of SGLang under another name: planned, printed, exported, checked, validated and started."""
    for kind in ("engines", "runtimes"):
        (home / kind).mkdir()
        text = (
            (BUILT_IN / kind / "sglang.toml")
            .read_text()
            .replace("sglang", "example")
            .replace('name = "SGLang"', 'name = "Example"')
        )
        (home / kind / "example.toml").write_text(text)
    (home / "programs" / "tables").mkdir(parents=True)
    rows = (BUILT_IN / "programs" / "tables" / "sglang.toml").read_text()
    (home / "programs" / "tables" / "example.toml").write_text(rows.replace("sglang", "example"))
    source = Path(str(import_module("meshwise.programs.serve.sglang").__file__)).read_text()
    added("meshwise.programs.serve", "example", source.replace("sglang", "example").replace('"python", "-m", ', ""))
    made = serving.make(ServeAsk(model="llama-3-8b", on="4xh100-sxm", engine="example", users=8, fix=("tp=4",)), engines.commands)
    assert made.commands["example"][0].startswith("example.launch_server --model-path")
    written = export(made, "example")
    verdict = judge(read_sources([Source(name, text) for name, text in written.files.items()], {}), CheckAsk(on="4xh100-sxm"))
    assert (verdict.program, verdict.fits) == ("example", True)
    columns = "model,quant,engine,gpu,n_gpus,prompt_len,gen_len,batch_or_concurrency,decode_tok_s"
    (tmp_path / "runs.csv").write_text(f"{columns}\nllama-3-8b,bf16,Example 0.5,H100,4,512,128,1,200\n")
    validated = mw.validate(tmp_path / "runs.csv")
    assert isinstance(validated, ServeValidation)
    assert validated.cases[0].runtime.engine == "example"
    script(tmp_path, "example.launch_server", "")
    (started,) = processes.programs(deployment(made.ask), ServeRun(engine_path=str(tmp_path), port=0))
    assert (started.name, "--port" in started.command) == ("example", True)


# Code.


def test_a_flag_is_one_field() -> None:
    @question
    class Example(TrainAsk):
        """A question with one more field."""

        rounds: int = asked(default=1, converter=whole(1, 9), help="Rounds of the example.")

    assert "--rounds 3" in Example("llama-3-8b", rounds=3).command()
    assert any("Rounds of the example." in line for line in parameters(Example))


def test_an_axis_is_a_row_and_an_array() -> None:
    assert [axis.name for axis in AXES] == [field.name for field in fields(Layouts)]


def test_the_files_of_an_axis_are_those_that_are_named() -> None:
    """`etp` is the newest axis: who names it is on the list."""
    source = ROOT / "src" / "meshwise"
    naming = {path.relative_to(ROOT).as_posix() for path in source.rglob("*.py") if re.search(r"\betp\b", path.read_text())}
    listed = re.findall(r"`(src/[^`]*)`", section("An axis"))
    assert {path for path in naming if not path.startswith(tuple(listed))} == set()
    assert len(naming - {path for path in naming if "/programs/" in path}) <= 15


def test_every_heading_is_followed_here() -> None:
    tests = {name for name in globals() if name.startswith("test_")}
    followed = [heading for heading in SECTIONS if heading not in ELSEWHERE]
    words = {"field": "flag", "measurements": "measurements"}
    for heading in followed:
        noun = next(word for word in re.findall(r"\w+", heading.lower()) if word not in ("a", "an", "the"))
        assert any(f"_{words.get(noun, noun)}" in name for name in tests), heading


def test_every_file_that_is_named_exists() -> None:
    places = re.findall(r"`((?:src|tests|tools|docs|benchmarks)/[\w./-]*)`", TEXT)
    assert len(places) > 30
    assert [place for place in places if "NAME" not in place and "MODEL_TYPE" not in place and not (ROOT / place).exists()] == []
