"""The library as a notebook uses it: `import meshwise as mw`."""

import importlib.util
import inspect
import json
import re
import shlex
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import meshwise as mw
from meshwise import api
from meshwise.cost.parts import SERVE_TIME, TRAIN_MEMORY, TRAIN_TIME
from meshwise.plan.ask import ServeAsk, ShapeAsk, TrainAsk
from meshwise.plan.fields import Ask, field_of, spec
from support.command import once, one_line
from support.small_configs import small

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def plan() -> Any:
    """BLOOM on the 48 nodes that trained it."""
    return mw.plan("bloom-176b", on="jean-zay:48", batch="2048x2048", framework="megatron-deepspeed")


@pytest.fixture(scope="module")
def served() -> Any:
    return mw.serve("llama-3.3-70b:q4_k_m", on="4xrtx4060ti-16gb", context="16k")


# The tour.


def test_the_best_layout_has_its_time_and_memory_by_part(plan: Any) -> None:
    best = plan.best
    assert best is plan.choices[0]
    assert 100 < best.step < 130  # 105 s measured by the BLOOM team (docs/reports/accuracy.md)
    assert 0.25 < best.mfu < 0.5
    assert sum(best.time.values()) == pytest.approx(best.step)
    assert sum(best.memory.values()) == pytest.approx(best.peak)
    assert best.time["bubble"] > 0
    assert best.memory["activations"] > 1e9
    assert set(best.time) == {part.name for part in TRAIN_TIME}
    assert set(best.memory) == {part.name for part in TRAIN_MEMORY}


def test_rows_are_those_of_csv(plan: Any) -> None:
    found = plan.rows()
    assert [row["seconds"] for row in found] == [choice.step for choice in plan.choices]
    assert found[0]["layout.tp"] == plan.best.layout["tp"]
    header = once(*shlex.split(plan.command)[1:], "--csv").out.splitlines()[0]
    assert header.split(",") == list(found[0])


class Frame:
    """Stands for the DataFrame of polars and pandas."""

    def __init__(self, rows: list[dict[str, Any]]) -> None:
        self.rows = rows


@pytest.mark.parametrize("name", ["polars", "pandas"])
def test_a_frame_is_made_by_whichever_library_is_installed(
    name: str, plan: Any, served: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = ModuleType(name)
    library.DataFrame = Frame  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, name, library)
    monkeypatch.setattr("meshwise.catalogue.records.find_spec", lambda wanted: wanted if wanted == name else None)
    for result in (plan, served, plan.vary(nodes="24,48")):
        assert result.to_frame().rows == result.rows()


def test_without_polars_and_pandas_the_error_says_what_to_install(plan: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("meshwise.catalogue.records.find_spec", lambda name: None)
    with pytest.raises(mw.UserError) as refused:
        plan.to_frame()
    assert one_line(refused.value) == "to_frame() needs polars or pandas: pip install polars; rows() needs neither"


def test_a_plan_is_explained_against_a_layout_of_your_own(plan: Any) -> None:
    why = plan.explain(versus="tp=8,pp=6")
    assert (why.other.layout["tp"], why.other.layout["pp"]) == (8, 6)
    assert why.other.step > why.best.step
    assert str(why).splitlines() == why.reasons
    assert len(why.highlights) < len(why.reasons)
    with pytest.raises(mw.UserError, match="did you mean 'tp'"):
        plan.explain(versus="tq=8")


def test_a_plan_varies(plan: Any, served: Any) -> None:
    points = plan.vary(nodes="24..96")
    assert len(points) == 3
    assert [point.values["nodes"] for point in points] == [24, 48, 96]
    assert [row["nodes"] for row in points.rows()] == [24, 48, 96]
    assert next(point for point in points if point.values["nodes"] == 48).choice.step == plan.best.step
    assert points.command == f"{plan.command} --vary nodes=24..96"
    assert [point.values["gpus"] for point in served.vary(gpus="3..5")] == [3, 4, 5]
    with pytest.raises(mw.UserError, match="did you mean 'nodes'"):
        plan.vary(node="24..96")


def test_a_plan_is_saved_and_loaded_as_it_was(plan: Any, served: Any, tmp_path: Path) -> None:
    for i, made in enumerate((plan, served)):
        path = made.save(tmp_path / f"{i}.json")
        assert mw.load(path) == mw.load(str(path)) == made
        assert json.loads(path.read_text()) == made.to_json()
        assert mw.load(path).command == made.command
    with pytest.raises(mw.UserError, match="cannot read"):
        mw.load(tmp_path / "nowhere.json")


def test_serving_has_layouts_reasons_and_commands(served: Any) -> None:
    assert served.best.throughput == max(choice.throughput for choice in served.choices)
    assert served.best.low < served.best.per_user < served.best.high
    assert served.commands["llama.cpp"][0].startswith("llama-server -m ")
    assert served.explain() == list(served.reasons)
    assert set(served.best.time) == {part.name for part in SERVE_TIME}


@pytest.fixture(scope="module")
def results(plan: Any, served: Any) -> dict[str, Any]:
    """A result of every verb; the tests of its package check its numbers."""
    return {
        "plan": plan,
        "serve": served,
        "points": plan.vary(nodes="24,48"),
        "count": mw.count("llama-3-70b", seq="8k"),
        "audit": mw.audit(params="124M", seq=128, batch="16", on="8xh100-sxm", step="7.5s", tokens_per_sec=15570),
        "validate": mw.validate("bloom_prequel"),
        "validate serving": mw.validate("llamacpp_fit_dryrun"),
        "calibrate": mw.calibrate("korthikanti2022_iteration"),
        "cheapest": mw.cheapest("llama-3-8b", "nodes=1,2", on="h100-sxm", batch="1M", tokens="100B"),
        "shapes": mw.shapes(
            on="jean-zay:2", batch="256x2048", framework="megatron-deepspeed", shape=["4096x30x32"], vocab=250880
        ),
    }


def test_every_verb_answers(results: dict[str, Any]) -> None:
    assert results["count"].params == 70_553_706_496  # as transformers allocates
    assert results["count"].to_json()["training_flops"]["seq"] == 8192
    assert "does not add up" in results["audit"].verdict
    assert len(results["validate"].rows()) == 75
    assert results["validate"].score["time"]["mape"] < 0.05
    assert results["calibrate"].text.splitlines()[0].startswith("#")
    cheapest = results["cheapest"]
    assert cheapest.best.choice.total_dollars == min(point.choice.total_dollars for point in cheapest.tried if point.choice)
    named = mw.plan("bloom-7b1", on="jean-zay:2", batch="256x2048", framework="megatron-deepspeed")
    assert results["shapes"].best.choice.step == named.best.step
    (h200,) = mw.show("chips", "h200")
    assert h200["memory"] == mw.find_chip("h200").memory
    assert mw.find_cluster("jean-zay:48").devices == 384
    assert mw.find_model("llama-3-70b").params == results["count"].params


def test_every_result_is_shown_in_one_line(results: dict[str, Any]) -> None:
    for result in results.values():
        assert repr(result).startswith(f"<{type(result).__name__}")
        assert len(repr(result)) < 300
        assert repr(result).isprintable()


@pytest.mark.parametrize("name", ["plan", "serve", "points", "cheapest", "shapes"])
def test_every_plan_has_rows_json_and_the_command_that_makes_it(name: str, results: dict[str, Any]) -> None:
    result = results[name]
    assert all(isinstance(value, str | int | float | None) for row in result.rows() for value in row.values())
    json.dumps(result.to_json(), allow_nan=False)
    assert result.command.startswith(("meshwise plan ", "meshwise serve "))


def test_an_unknown_keyword_is_answered_with_the_nearest() -> None:
    with pytest.raises(TypeError, match=r"plan\(\) got an unexpected keyword argument 'btach'; did you mean 'batch'\?"):
        mw.plan("gpt2", btach=64)  # pyright: ignore[reportCallIssue]
    with pytest.raises(mw.UserError, match="did you mean 'params'"):
        mw.audit(parms="124M")
    with pytest.raises(mw.UserError, match="did you mean 'batch'"):
        mw.cheapest("gpt2", btach=64)


def test_errors_are_those_of_the_command_line() -> None:
    with pytest.raises(mw.UserError, match="'many' is not"):
        mw.plan("gpt2", on="8xh100-sxm", batch="many")
    with pytest.raises(mw.DoesNotFit, match="does not fit on 8xrtx4090"):
        mw.plan("llama-3-405b", on="8xrtx4090", batch=8)
    with pytest.raises(mw.UserError, match="missing --on"):
        mw.serve("gpt2")
    with pytest.raises(mw.UserError, match="there is no catalogue 'chipz'; did you mean 'chips'"):
        mw.show("chipz")


# In a notebook.


class Page(HTMLParser):
    """Reads HTML and fails where tags do not match."""

    VOID = ("br",)

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.words: list[str] = []
        self.cells: list[list[str]] = []
        self.styles: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.styles += [value or "" for name, value in attrs if name == "style"]
        if tag == "tr":
            self.cells.append([])
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)
        if self.open and self.open[-1] in ("td", "th"):
            self.cells[-1].append(data)


def test_a_notebook_shows_every_row_the_bars_in_their_colours_and_the_command(plan: Any, served: Any) -> None:
    for made, parts in (
        (plan, {TRAIN_TIME: plan.best.time, TRAIN_MEMORY: plan.best.memory}),
        (served, {SERVE_TIME: served.best.time}),
    ):
        html = made._repr_html_()
        page = Page(html)
        assert [row[0] for row in page.cells] == ["layout", *(choice.name for choice in made.choices)]
        assert made.command in page.words
        for kinds, values in parts.items():
            for part in kinds:
                assert (values[part.name] == 0) or part.colour in html
        widths = [float(found[1]) for style in page.styles if (found := re.search(r"width:([\d.]+)%;background", style))]
        assert len(widths) == sum(value > 0 for values in parts.values() for value in values.values())
        assert sum(widths) <= 100 * len(parts) + 0.1


def test_names_from_files_are_escaped_in_a_notebook(tmp_path: Path) -> None:
    folder = tmp_path / "<img src=x onerror=alert(1)>&amp"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(small("llama")))
    html = mw.plan(str(folder), on="8xh100-sxm", batch="64x512")._repr_html_()
    page = Page(html)
    assert "img" not in page.tags
    assert any(str(folder) in words for words in page.words)


# The public surface.


def test_dir_lists_the_public_names_and_nothing_else() -> None:
    assert dir(mw) == sorted(mw.__all__) == sorted(set(mw.__all__))
    with pytest.raises(AttributeError, match="module 'meshwise' has no attribute 'paln'"):
        _ = mw.paln  # pyright: ignore[reportAttributeAccessIssue]


@pytest.mark.parametrize("name", mw.__all__)
def test_every_public_name_has_a_docstring(name: str) -> None:
    found = getattr(mw, name)
    assert callable(found)
    assert len(inspect.getdoc(found) or "") > 20


@pytest.mark.parametrize(("function", "ask"), [("plan", TrainAsk), ("serve", ServeAsk), ("shapes", ShapeAsk)])
def test_keywords_of_a_verb_are_the_fields_of_its_question(function: str, ask: type[Ask]) -> None:
    for found in (getattr(mw, function), getattr(api, function)):
        parameters = inspect.signature(found).parameters
        assert list(parameters) == list(spec(ask))
        for name, parameter in parameters.items():
            keyword = field_of(ask, name).kw_only
            assert parameter.kind == (parameter.KEYWORD_ONLY if keyword else parameter.POSITIONAL_OR_KEYWORD)
            assert parameter.default == getattr(ask(), name)
    doc = inspect.getdoc(getattr(mw, function)) or ""
    assert all(f"{name}: {about.help}" in doc for name, about in spec(ask).items())


# Processes of their own: the order of imports, and what is imported at all.


def python(script: str) -> str:
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.parametrize(
    "first",
    [
        "import meshwise.plan.ask",
        "import meshwise.run.train, meshwise.audit.report, meshwise.calibrate.result",
        "from meshwise import plan; from meshwise.plan import ask; assert plan is not ask",
        "from meshwise.plan.train import search",
        "import meshwise.api",
    ],
)
def test_verbs_can_be_called_whichever_package_was_imported_before(first: str) -> None:
    script = f"""
{first}
import inspect
import meshwise as mw
step = mw.plan("llama-debug", on="8xh100-sxm", batch="64x512").best.step
assert step == mw.plan("llama-debug", on="8xh100-sxm", batch="64x512").best.step > 0
assert "on" in inspect.signature(mw.plan).parameters
assert mw.audit(params="124M").verdict
import meshwise.plan.train.plan
from meshwise.plan.ask import TrainAsk
assert meshwise.plan.ask.TrainAsk is TrainAsk
"""
    python(script)


HEAVY = ("torch", "transformers", "numpy", "scipy", "rich", "typer")


@pytest.mark.parametrize(
    ("statement", "loaded"),
    [
        ("import meshwise", []),
        ("import meshwise.api", []),
        ("import meshwise as mw; dir(mw); mw.UserError", []),
        ("import meshwise as mw; mw.count('llama-3-8b').to_json()", []),
        ("import meshwise as mw; mw.serve('llama-3.3-70b:q4_k_m', on='4xrtx4060ti-16gb').to_json()", []),
        ("import meshwise as mw; mw.plan('llama-debug', on='8xh100-sxm', batch='64x512').to_json()", ["numpy"]),
        ("import meshwise as mw; mw.plan('llama-debug', on='8xh100-sxm', batch='64x512')._repr_html_()", ["numpy", "rich"]),
    ],
)
def test_a_verb_imports_nothing_that_it_does_not_need(statement: str, loaded: list[str]) -> None:
    script = f"import sys\n{statement}\nprint(*(name for name in {HEAVY!r} if name in sys.modules))"
    assert python(script).split() == loaded


# The tour on docs/use/api.md.


def test_the_tour_of_the_documents_prints_what_it_says() -> None:
    """`make docs` writes the results again (cog and tools/shown.py)."""
    location = importlib.util.spec_from_file_location("shown", ROOT / "tools" / "shown.py")
    assert location
    assert location.loader
    shown = importlib.util.module_from_spec(location)
    location.loader.exec_module(shown)
    blocks = re.findall(
        r"^```python\n(.*?)^```$", (ROOT / "docs" / "use" / "api.md").read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    )
    assert len(blocks) >= 5
    tour = shown.Python()
    for block in blocks:
        assert "\n".join(tour.lines(block)) + "\n" == block
    assert sum(block.count(shown.Python.MARK) for block in blocks) > 15
