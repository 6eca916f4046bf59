"""Pages over a socket: HTML, JSON and CSV at the same address, and what they say where there is no answer."""

import csv
import errno
import gzip
import io
import json
import re
import tempfile
from html import unescape
from pathlib import Path

import pytest

from meshwise import api, units
from meshwise.plan.ask import ServeAsk
from meshwise.ui.web.pages import PAGES
from meshwise.ui.web.pages import serve as serve_page
from meshwise.workers.trainer.contract.rows import add_row, step_row
from support.pages import BLOOM, CARDS, SMALL, Server, serving
from support.tiny_runs import WHOLE, steps

FRAGMENT = {"x-meshwise-fragment": "1"}


@pytest.mark.parametrize("page", [page.name for page in PAGES if page.name != "accuracy"])
def test_every_page_has_a_first_state_that_says_what_to_do(server: Server, page: str) -> None:
    reply = server.get(f"/{page}")
    assert reply.status == 200
    assert '<main id="answer"' in reply.text
    assert '<section class="empty">' in reply.text


def test_the_first_page_asks_what_one_has_and_wants(server: Server) -> None:
    """Each question goes to a page that answers it; each input has a label, a hint and an example."""
    text = server.get("/").text
    for page, name in (("plan", "batch"), ("finetune", "finetune"), ("serve", "users"), ("pick", "on")):
        assert f'action="/{page}"' in text
        assert f'<label for="{page}-{name}">' in text
        assert f'id="{page}-{name}-hint"' in text
    for page in PAGES:
        assert f'href="/{page.name}"' in text


def test_fine_tuning_needs_a_model_and_a_card(server: Server) -> None:
    reply = server.get("/finetune?model=llama-3.1-8b&on=1xrtx4090&tokens=5M")
    assert reply.status == 200
    assert "lora:16; batch 8" in reply.text
    assert "minutes" in reply.text


def test_two_saved_plans_are_compared_and_one_is_not_enough(server: Server, tmp_path: Path) -> None:
    plans = [api.serve("qwen3-8b", on=on).save(tmp_path / f"{on}.json") for on in ("1x4090", "2x4090")]
    reply = server.upload(*((path.name, path.read_bytes()) for path in plans), page="compare")
    assert reply.status == 200
    assert "<h1>1x4090.json and 2x4090.json</h1>" in reply.text
    assert "tokens/s of one request" in reply.text
    assert server.upload((plans[0].name, plans[0].read_bytes()), page="compare").status == 400
    assert server.upload(("a.json", b"{}"), ("b.json", b"[]"), page="compare").status == 400


def test_a_launch_file_is_checked_with_the_cluster_of_the_form(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    script = (
        b"torchrun --nproc-per-node 8 pretrain_gpt.py --tensor-model-parallel-size 3 --num-layers 32 --hidden-size 4096 --bf16 "
        b"--num-attention-heads 32 --seq-length 4096 --max-position-embeddings 4096 --micro-batch-size 2 --global-batch-size 256\n"
    )
    reply = server.upload(("train.sh", script), page="check", on="1x8xh100-sxm")
    assert reply.status == 200
    assert "cannot start" in reply.text
    assert "train.sh:1" in reply.text
    assert str(tmp_path) not in reply.text
    assert list(tmp_path.iterdir()) == []


def test_what_if_marks_what_may_not_fit_and_what_meets_its_targets(server: Server) -> None:
    reply = server.get("/what-if?of=serve&model=qwen3-32b&on=8xh100-sxm&users=200&ttft=100ms&x=users")
    assert ">meets</th>" in reply.text
    assert {"yes", "no"} <= set(re.findall(r">(yes|no)<", reply.text))
    risky = server.get("/what-if?model=llama-3-8b&on=8xrtx3090&batch=64x2048&framework=fsdp&x=batch")
    assert " !</" in risky.text or " !<" in risky.text


def test_the_plan_page_shows_what_the_library_answers(server: Server) -> None:
    made = api.plan("bloom-176b", on="jean-zay:48", batch="2048x2048", framework="megatron-deepspeed", tokens="366B")
    text = unescape(server.get(f"/plan?{BLOOM}").text)
    for choice in made.choices:
        assert f"<code>{choice.name}</code>" in text
    assert f"{made.best.step:.4g} s" in text
    assert f"{made.best.mwh:,.0f} MWh" in text
    assert made.command in text
    for rule, count in made.rejected.items():
        assert rule in text
        assert f"{count:,}" in text


def test_json_and_csv_are_the_library_s_own(server: Server, tmp_path: Path) -> None:
    made = api.plan("llama-debug", on="1x8xh100-sxm", batch=64, seq=512)
    reply = server.get(f"/plan.json?{SMALL}")
    assert reply.json() == json.loads(json.dumps(made.to_json()))
    (tmp_path / "plan.json").write_bytes(reply.body)
    assert api.load(tmp_path / "plan.json").ask == made.ask
    rows = list(csv.DictReader(io.StringIO(server.get(f"/plan.csv?{SMALL}").text)))
    assert [float(row["seconds"]) for row in rows] == pytest.approx([row["seconds"] for row in made.rows()])
    assert server.get(f"/plan.csv?{SMALL}&download=1").headers["content-disposition"].startswith("attachment")


def test_the_serve_page_shows_commands_bytes_and_what_does_not_fit(server: Server) -> None:
    made = api.serve("llama-3.3-70b:q4_k_m", on="4xrtx4060ti-16gb", context="16k")
    text = unescape(server.get(f"/serve?{CARDS}").text)
    for lines in made.commands.values():
        assert all(line in text for line in lines)
    assert all(miss.name in text for miss in made.misses)
    assert "not calibrated for" in text
    cards = len(serve_page.device_bars(made.best, "card"))  # cards that hold the same share a bar
    assert text.count('class="bar wide"') == 1 + cards  # the decode step, and the cards


LOADED = "model=llama-3.1-8b%3Afp8&on=1xh100-sxm&rate=4%2Fs&ttft=2s%40p95&prompt=1k%3A0.5"


def test_the_serve_page_shows_the_load_targets_and_dollars_as_the_library_does(server: Server) -> None:
    made = api.serve("llama-3.1-8b:fp8", on="1xh100-sxm", rate="4/s", ttft="2s@p95", prompt="1k:0.5")
    text = unescape(server.get(f"/serve?{LOADED}").text)
    best = made.best
    for words in (
        "4 requests/s, 1,024 prompt (spread 0.5) + 128 output tokens",
        "meets the targets",
        f"95% below {units.show(best.ttft.p95, 'seconds', digits=3)}",
        f"{best.requests:.3g} requests/s",
        f"${best.dollars_per_million_out:,.2f}",
        f"{made.most:,.3g}",
        "per million output tokens",
    ):
        assert words in text, words
    form = server.get("/serve").text
    assert all(
        f'name="{name}"' in form for name in ("rate", "burst", "ttft", "tpot", "e2e", "depth", "prefix", "draft", "cheapest")
    )
    assert 'name="lengths"' not in form


def test_the_serve_page_finds_the_cheapest_devices(server: Server) -> None:
    asked = "model=llama-3.1-8b%3Afp8&on=h100-sxm%2Cl40s&rate=4%2Fs&ttft=1s&cheapest=1"
    points = api.cheapest_serve(ServeAsk("llama-3.1-8b:fp8", on="h100-sxm,l40s", rate="4/s", ttft="1s", cheapest=True))
    text = unescape(server.get(f"/serve?{asked}").text)
    assert all(point.labels[0] in text for point in points)
    assert "the cheapest first" in text
    assert points.command in text
    assert server.get(f"/serve.json?{asked}").json()["points"] == json.loads(json.dumps(points.to_json()))["points"]
    link = re.findall(r'href="(/serve\?[^"]*on=[^"]*)"', text)
    assert server.get(link[0]).status == 200


def test_the_front_of_the_page_is_that_of_the_library(server: Server) -> None:
    made = api.front_serve(ServeAsk("llama-3.1-8b:fp8", on="2xh100-sxm"))
    points = server.get("/what-if/front?of=serve&model=llama-3.1-8b%3Afp8&on=2xh100-sxm&users=8").json()["points"]
    assert [(p["layout"], p["users"], p["each"], p["all"]) for p in points if p["front"]] == [
        (point.name, point.users, point.per_user, point.per_device) for point in made.points
    ]


def test_columns_sort_and_rows_compare(server: Server) -> None:
    text = server.get(f"/plan?{BLOOM}&sort=-mfu").text
    shares = [float(cell) for cell in re.findall(r'<td class="number">([\d.]+)%', text)]
    assert shares == sorted(shares, reverse=True)
    assert len(shares) == 10
    compared = server.get(f"/plan?{BLOOM}&a=1&b=4", **FRAGMENT).text
    assert 'id="comparison"' in compared
    assert compared.count('aria-checked="true"') == 2
    served = server.get(f"/serve?{CARDS}&a=1&b=3").text
    assert 'id="comparison"' in served


def test_reasons_come_after_the_answer(server: Server) -> None:
    reasons = api.plan("llama-debug", on="1x8xh100-sxm", batch=64, seq=512).explain().reasons
    text = unescape(server.get(f"/plan/why?{SMALL}").text)
    assert all(line.strip() in text for line in reasons)


@pytest.mark.parametrize(("page", "asked"), [("plan", SMALL), ("serve", CARDS)])
def test_what_a_plan_rests_on_is_one_click_below_its_answer(server: Server, page: str, asked: str) -> None:
    assert f'data-lazy="/{page}/believe?' in server.get(f"/{page}?{asked}").text
    text = unescape(server.get(f"/{page}/believe?{asked}").text)
    assert "Calibration " in text
    assert "What would narrow it most" in text


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        (f"/plan?{SMALL}&precision=fp3", 400, "expected one of"),
        (f"/plan?{SMALL}&a=99&b=1", 400, "expected a whole number from 1 to"),
        ("/plan?model=bloom-176b&on=8xrtx4090&batch=8", 422, "does not fit"),
        ("/serve?model=llama-3.3-70b&on=1xrtx4090&fix=cards%3D1%2Csplit%3Dlayer&engine=vllm", 400, "split"),
        ("/what-if?model=llama-3-8b&on=8xh100-sxm&batch=64&x=colour", 400, "there is no axis"),
        ("/accuracy?table=nothing", 400, "unknown table"),
        (f"/mesh?{SMALL}&row=900", 400, "the table has"),
        ("/audit?file=%2Fetc%2Fpasswd", 400, "was not named on the command line"),
        ("/runs?run=x", 200, "No run was named"),
        ("/nowhere", 404, "there is no page"),
    ],
)
def test_what_cannot_be_answered_is_said_in_one_sentence(server: Server, path: str, status: int, words: str) -> None:
    reply = server.get(path)
    assert (reply.status, words in unescape(reply.text)) == (status, True)
    assert "Traceback" not in reply.text


def test_errors_of_json_are_json_and_a_page_s_own_requests_do_not_fail(server: Server) -> None:
    reply = server.get("/plan.json?model=nope&on=8xh100-sxm&batch=8")
    assert reply.status == 400
    assert "not in the catalogue" in reply.json()["error"]
    assert server.get("/plan.json").json()["error"] == "missing: a model, a cluster (on), a global batch"
    shown = server.get("/plan?model=nope&on=8xh100-sxm&batch=8", **FRAGMENT)
    assert (shown.status, "not in the catalogue" in shown.text) == (200, True)


def test_text_from_a_question_is_escaped(server: Server) -> None:
    reply = server.get("/plan?model=%3Cscript%3Ealert(1)%3C%2Fscript%3E&on=%22%3E%3Cb%3E&batch=8")
    assert "<script>alert" not in reply.text
    assert "<b>" not in reply.text


def test_names_are_suggested(server: Server) -> None:
    def values(query: str) -> list[str]:
        return [each["value"] for each in server.get(f"/suggest?{query}").json()]

    assert "bloom-176b" in values("catalogue=models&typed=bloom")
    assert "llama-3.3-70b:q4_k_m" in values("catalogue=models&typed=llama-3.3-70b&page=serve")
    assert "4xrtx4060ti-16gb" in values("catalogue=clusters&typed=4xrtx4060&page=serve")
    assert any(name.startswith("jean-zay") for name in values("catalogue=clusters&typed=jean"))
    assert server.get("/suggest?catalogue=../../etc").status == 400


def test_what_if_draws_a_point_per_value_and_sliders_move_the_question(server: Server) -> None:
    asked = "model=llama-3-8b&on=8x8xh100-sxm&batch=1M&tokens=1T&x=nodes"
    made = server.get(f"/what-if.json?{asked}").json()
    assert [point["nodes"] for point in made["points"]] == [1, 2, 4, 8, 16, 32, 64]
    moved = server.get(f"/what-if.json?{asked}&at.batch=2M").json()
    assert moved["ask"]["batch"] == 2 * made["ask"]["batch"]
    grid = server.get("/what-if?model=llama-debug&on=1x8xh100-sxm&batch=64&seq=512&x=batch&y=precision")
    assert grid.status == 200
    assert 'data-chart="heat"' in grid.text
    served = server.get("/what-if.json?of=serve&model=llama-3.1-8b%3Aq8_0&on=1xrtx4090&users=2&x=users").json()
    assert [point["users"] for point in served["points"]] == [1, 2, 4, 8, 16]


def test_the_front_of_serving_has_no_point_that_another_beats(server: Server) -> None:
    points = server.get("/what-if/front?of=serve&model=llama-3.1-8b%3Aq8_0&on=2xrtx4090").json()["points"]
    front = [point for point in points if point["front"]]
    beaten = [a for a in front for b in points if b["each"] > a["each"] and b["all"] > a["all"]]
    assert front
    assert beaten == []


def test_the_trace_is_one_that_perfetto_reads(server: Server) -> None:
    reply = server.get(f"/timeline/trace?{SMALL}")
    assert json.loads(gzip.decompress(reply.body))["traceEvents"]
    assert 'id="gantt"' in server.get(f"/timeline?{SMALL}").text


def test_count_shows_models_side_by_side(server: Server) -> None:
    counted = server.get("/count.json?model=llama-3-8b%2C+bloom-176b").json()
    assert [each["parameters"]["total"] for each in counted] == [api.count("llama-3-8b").params, api.count("bloom-176b").params]
    assert server.get("/count?model=a,b,c,d,e,f,g").status == 400


def test_accuracy_is_what_validate_says(server: Server) -> None:
    table = "korthikanti2022_iteration"
    assert server.get(f"/accuracy.json?table={table}").json()["time"] == api.validate(table).score["time"]
    assert server.get(f"/accuracy/score?table={table}").json()["runs"] == "10"
    assert "error" in server.get("/accuracy/score?table=local_rig_notes").json()
    assert server.get("/accuracy/score?table=rl_steps").json()["in the 90% interval"].endswith("%")


def test_a_full_disk_refuses_an_upload_in_words(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    monkeypatch.setattr(tempfile.SpooledTemporaryFile, "rollover", full)  # an upload of megabytes stays in memory
    reply = server.upload(("a.log", b"step 1 loss 3\n" * 200_000))
    assert reply.status == 400
    assert "No space left on device" in reply.text


def test_an_uploaded_log_is_audited_and_a_table_scored(server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    table = (Path(api.__file__).parent / "data/measurements/korthikanti2022_iteration.csv").read_bytes()
    reply = server.upload(("mine.csv", table))
    assert reply.status == 200
    assert "Predictions for mine" in reply.text
    assert server.upload(("broken.log", b"\x00\xff\x00 nothing in here")).status == 400
    assert server.upload(("empty.csv", b"")).status == 400
    assert server.send("POST", "/audit", b"not a form").status == 400
    assert list(tmp_path.iterdir()) == []


def test_reports_have_everything_inside(server: Server) -> None:
    for path in (f"/plan/report?{BLOOM}", f"/serve/report?{CARDS}"):
        reply = server.get(path)
        assert reply.headers["content-disposition"].startswith("attachment")
        assert len(reply.body) < 1_000_000
        assert not re.search(r'(?:src|href)="(?!#)', reply.text)


def test_runs_named_on_the_command_line_are_shown_and_followed(tmp_path: Path) -> None:
    from meshwise.ui.web import named

    for name, seconds in (("first", (2.0, 1.0, 1.0, 1.0)), ("second", (2.0, 0.5, 0.5, 0.5))):
        folder = tmp_path / name
        folder.mkdir()
        WHOLE.write(folder / "config.json")
        for step in steps(*seconds):
            add_row(folder / "steps.jsonl", step_row(step))
    given = named.read([tmp_path])
    assert named.first_page(given) == "/runs"
    with serving(given) as server:
        made = server.get("/runs.json").json()
        assert [run["measured"]["seconds"] for run in made["runs"]] == [1.0, 0.5]
        assert "first: running, step 4 of 6" in server.get("/runs").text
        assert server.get("/runs?run=third").status == 400
        for i, step in enumerate(steps(*[1.0] * 6)[4:]):
            add_row(tmp_path / "first" / "steps.jsonl", step_row(step))
            assert i < 2
        told = server.get("/runs/events?run=first").text
        assert told.count('"loss"') == 6
        assert "event: end" in told
        assert server.get("/runs/events?run=..").status == 404


def test_a_plan_named_on_the_command_line_is_opened(tmp_path: Path) -> None:
    from meshwise.ui.web import named

    api.plan("llama-debug", on="1x8xh100-sxm", batch=64, seq=512).save(tmp_path / "plan.json")
    given = named.read([tmp_path / "plan.json"])
    with serving(given) as server:
        assert "<code>dp8" in server.get(named.first_page(given)).text
    (tmp_path / "train.log").write_text("nothing")
    assert named.first_page(named.read([tmp_path / "train.log"])) == "/audit"
