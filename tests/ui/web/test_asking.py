"""Questions from query strings, and forms from questions."""

from urllib.parse import parse_qsl, urlencode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from meshwise.errors import UserError
from meshwise.plan.ask import ServeAsk, TrainAsk
from meshwise.plan.fields import Ask, spec
from meshwise.ui.web import asking
from support.command import one_line


@pytest.mark.parametrize("ask", [TrainAsk, ServeAsk])
def test_a_form_has_every_field_of_its_question_with_its_help(ask: type[Ask]) -> None:
    inputs = {each.name: each for group in asking.groups(ask, []) for each in group.inputs}
    assert list(inputs) == [
        name
        for group in dict.fromkeys(a.group for a in spec(ask).values())
        for name, a in spec(ask).items()
        if a.group == group and name not in asking.FILES
    ]
    assert [each.help for each in inputs.values() if not each.help] == []
    assert inputs["model"].catalogue == "models"
    assert inputs["on"].catalogue == "clusters"


def test_a_form_offers_values_of_the_axis_and_shows_the_default() -> None:
    inputs = {each.name: each for group in asking.groups(TrainAsk, [("seq", "8k")]) for each in group.inputs}
    assert inputs["seq"].options == ("4k", "8k", "16k", "32k", "64k", "128k")
    assert (inputs["seq"].value, inputs["seq"].placeholder) == ("8k", "4k")
    assert inputs["precision"].kind == "choice"
    assert {"bf16", "fp8"} <= set(inputs["precision"].options)


trained = st.builds(
    TrainAsk,
    model=st.sampled_from(["bloom-176b", "llama-3-8b"]),
    on=st.sampled_from(["jean-zay:48", "8xh100-sxm"]),
    batch=st.integers(1, 4096),
    seq=st.sampled_from([512, 2048, 3000, 8192]),
    tokens=st.sampled_from([0.0, 366e9, 1.5e12]),
    precision=st.sampled_from(["bf16", "fp8"]),
    compile=st.booleans(),
    fix=st.sampled_from([(), ("tp=8",), ("tp=8", "pp=2")]),
    price=st.sampled_from([0.0, 2.5 / 3600]),
    spares=st.sampled_from([None, 0, 3]),
    mtbf=st.sampled_from([None, 3600.0]),
)
served = st.builds(
    ServeAsk,
    model=st.sampled_from(["llama-3.3-70b:q4_k_m", "llama-3-8b"]),
    on=st.sampled_from(["4xrtx4060ti-16gb", "2x(2xrtx3090)@10Gbps"]),
    users=st.integers(1, 64),
    context=st.sampled_from([0, 1000, 16384]),
    ttft=st.sampled_from([0.0, 1.5]),
    per_user=st.sampled_from([0.0, 15.0]),
)


@given(st.one_of(trained, served))
def test_a_link_is_the_whole_question(ask: Ask) -> None:
    link = urlencode(asking.query_of(ask))
    assert asking.question(type(ask), parse_qsl(link, keep_blank_values=True)) == ask


def test_empty_fields_mean_the_default() -> None:
    query = [("model", "llama-3-8b"), ("on", " "), ("batch", "64"), ("precision", "")]
    assert asking.question(TrainAsk, query) == TrainAsk(model="llama-3-8b", batch="64")


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ([("modell", "x")], "there is no field 'modell'; did you mean 'model'?"),
        ([("model", "/etc/passwd")], "is not in the catalogue"),
        ([("model", "../config.json")], "is not in the catalogue"),
        ([("model", "meta-llama/Some-New-Model")], "is not in the catalogue"),
        ([("model", "weights.gguf")], "is not in the catalogue"),
        ([("model", "llama-3-70")], "did you mean 'llama-3-70b'"),
        ([("on", "/tmp/cluster.toml")], "the page reads no files"),
        ([("calibration", "mine.TOML")], "the page reads no files"),
        ([("top", "500")], "at most 100"),
        ([("at_most", "4096 nodes")], "at most 64"),
        ([("on", "x" * 400)], "too long"),
        ([("on", "8xh100\x00")], "cannot be printed"),
        ([("seq", "many")], "--seq"),
    ],
)
def test_what_a_page_does_not_answer_is_refused_in_one_line(query: asking.Pairs, words: str) -> None:
    with pytest.raises(UserError) as error:
        asking.question(TrainAsk, query)
    assert words in one_line(error.value)


def test_a_model_that_the_command_line_named_may_be_a_file() -> None:
    assert asking.question(TrainAsk, [("model", "my/config.json")], named={"my/config.json"}).model == "my/config.json"


def test_changed_replaces_and_removes_parameters() -> None:
    query = [("model", "a b"), ("a", "1"), ("sort", "")]
    assert asking.changed(query, a="", b="2") == "model=a+b&b=2"
