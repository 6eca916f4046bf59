"""Pages in a real browser: ask, change, sort, compare, share, download, upload, and what happens when the server dies."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from meshwise import api
from meshwise.ui.web import named, report
from support.browser import NARROW, chromium, executable, opened, settle
from support.pages import BLOOM, CARDS, SMALL, Server, serving

pytest.importorskip("playwright", reason="Playwright is not installed")
if executable() is None:
    pytest.skip("no Chromium is installed: apt install chromium, or set $MESHWISE_CHROMIUM", allow_module_level=True)
if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.slow
AXE = Path(__file__).parent / "vendor" / "axe.min.js"
SHOWN = {
    "plan": f"/plan?{BLOOM}&a=1&b=3",
    "serve": f"/serve?{CARDS}",
    "what-if": "/what-if?model=llama-3-8b&on=8x8xh100-sxm&batch=1M&tokens=1T&x=nodes",
    "heat map": "/what-if?model=llama-debug&on=1x8xh100-sxm&batch=64&seq=512&x=batch&y=precision",
    "mesh": f"/mesh?{BLOOM}",
    "timeline": f"/timeline?{BLOOM}",
    "count": "/count?model=llama-3-8b%2C+bloom-176b",
    "accuracy": "/accuracy?table=torchtitan_2024",
    "audit": "/audit?params=124M&seq=128&batch=16%2Fgpu&on=8xh100-sxm&step=7.5s&mfu=40%25",
    "start": "/",
    "finetune": "/finetune?model=llama-debug&on=1xrtx4090&seq=512&tokens=5M",
    "check": "/check",
    "compare": "/compare",
    "empty": "/plan",
    "error": "/serve?model=llama-3.3-70b&on=1xrtx4090&engine=vllm",
    "runs": "/runs",
}


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    with chromium() as running:
        yield running


@pytest.fixture
def complaints() -> list[str]:
    """Errors of the console; a test ends by asserting that there are none."""
    return []


@pytest.fixture
def page(browser: "Browser", complaints: list[str]) -> "Iterator[Page]":
    with opened(browser, complaints) as shown:
        yield shown


def layouts(page: "Page") -> list[str]:
    return page.locator(".layouts tbody td.words code").all_inner_texts()


def test_a_stranger_asks_the_bloom_question_by_mouse_and_changes_it(page: "Page", server: Server, complaints: list[str]) -> None:
    page.goto(server.address)
    page.get_by_role("navigation").get_by_role("link", name="Plan", exact=True).click()
    page.get_by_text("BLOOM on Jean Zay").click()
    settle(page)
    made = api.plan("bloom-176b", on="jean-zay:48", batch="2048x2048", framework="megatron-deepspeed", tokens="366B")
    assert layouts(page) == [choice.name for choice in made.choices]
    assert page.locator(".why li").count() > 3
    page.select_option("#f-framework", "megatron")
    page.wait_for_function("() => !document.querySelector('.question .sub').textContent.includes('DeepSpeed')")
    assert "framework=megatron&" in page.url + "&"
    assert layouts(page) != [choice.name for choice in made.choices]
    page.go_back()
    settle(page)
    assert layouts(page) == [choice.name for choice in made.choices]
    assert page.input_value("#f-framework") == "megatron-deepspeed"
    assert complaints == []


def test_the_four_cards_question_is_asked_by_picking_from_lists(page: "Page", server: Server, complaints: list[str]) -> None:
    page.goto(f"{server.address}/serve")
    page.click("#f-model")
    page.locator("#o-model li", has_text="llama-3.3-70b").first.click()
    page.click("#f-model")
    page.locator("#o-model li", has_text="llama-3.3-70b:q4_k_m").click()
    page.click("#f-on")
    page.locator("#o-on li", has_text=re.compile("^4xrtx4060ti-16gb")).click()
    page.click("#f-context")
    page.locator("#o-context li", has_text=re.compile("^16k$")).click()
    page.wait_for_selector(".layouts")
    made = api.serve("llama-3.3-70b:q4_k_m", on="4xrtx4060ti-16gb", context="16k")
    page.wait_for_function("() => document.querySelector('.question .sub').textContent.includes('context 16k')")
    assert layouts(page) == [choice.name for choice in made.choices]
    assert complaints == []


def test_keys_alone_suffice(page: "Page", server: Server, complaints: list[str]) -> None:
    page.goto(f"{server.address}/plan")
    page.focus("#f-model")
    page.keyboard.type("llama-deb")
    page.locator("#o-model li").first.filter(has_text="llama-debug").wait_for()  # not what the first letters suggest
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    assert page.input_value("#f-model") == "llama-debug"
    page.focus("#f-on")
    page.keyboard.type("1x8xh100-sxm")
    page.keyboard.press("Escape")
    page.focus("#f-batch")
    page.keyboard.type("64x512")
    page.keyboard.press("Escape")
    page.keyboard.press("Enter")
    page.wait_for_selector("#pick-1")
    settle(page)
    page.focus("#pick-1")
    page.keyboard.press("Space")
    page.wait_for_selector("#pick-1[aria-checked=true]")
    assert page.evaluate("document.activeElement.id") == "pick-1"
    page.focus("#pick-2")
    page.keyboard.press("Space")
    page.wait_for_selector("#comparison")
    assert complaints == []


def test_columns_sort_rows_compare_and_the_link_gives_the_same_answer_elsewhere(
    browser: "Browser", page: "Page", server: Server, complaints: list[str]
) -> None:
    page.goto(f"{server.address}/plan?{BLOOM}")
    settle(page)
    first = layouts(page)
    page.get_by_role("link", name="MFU").click()
    page.wait_for_selector("th[aria-sort=descending]")
    page.get_by_role("link", name="MFU").click()
    page.wait_for_selector("th[aria-sort=ascending]")
    assert layouts(page) != first
    rows = page.locator(".layouts tbody tr")
    rows.nth(0).locator("td.number").first.click()
    page.wait_for_selector("tr.marked")
    rows.nth(2).locator("td.number").first.click()
    page.wait_for_selector("#comparison")
    settle(page)
    told = page.locator("#comparison").inner_text()
    with opened(browser, complaints) as elsewhere:
        elsewhere.goto(page.url)
        settle(elsewhere)
        assert layouts(elsewhere) == layouts(page)
        assert elsewhere.locator("#comparison").inner_text() == told
    assert complaints == []


def test_plans_and_reports_are_downloaded(page: "Page", server: Server, tmp_path: Path, complaints: list[str]) -> None:
    page.goto(f"{server.address}/plan?{SMALL}")
    settle(page)
    with page.expect_download() as download:
        page.get_by_role("link", name="plan.json").click()
    download.value.save_as(tmp_path / "plan.json")
    assert api.load(tmp_path / "plan.json").best.name == layouts(page)[0]
    with page.expect_download() as download:
        page.get_by_role("link", name="HTML report").click()
    download.value.save_as(tmp_path / "report.html")
    first = layouts(page)[0]
    page.goto((tmp_path / "report.html").as_uri())
    assert (layouts(page)[0], page.inner_text(".caption")) == (first, first)
    assert (tmp_path / "report.html").stat().st_size < 1_000_000
    assert complaints == []


def test_a_report_of_the_command_line_opens_from_disk(page: "Page", tmp_path: Path, complaints: list[str]) -> None:
    made = api.serve("llama-3.3-70b:q4_k_m", on="4xrtx4060ti-16gb", context="16k")
    (tmp_path / "report.html").write_text(report.of_plan(made), encoding="utf-8")
    page.goto((tmp_path / "report.html").as_uri())
    assert page.locator(".layouts tbody tr").count() == len(made.choices)
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.click("#theme")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != background
    assert complaints == []


def test_a_broken_file_is_refused_in_words_and_a_good_one_checked(
    page: "Page", server: Server, tmp_path: Path, complaints: list[str]
) -> None:
    page.goto(f"{server.address}/audit")
    (tmp_path / "broken.csv").write_bytes(b'n_gpus,gpu\n8,"h100\x00')
    page.set_input_files("#upload", tmp_path / "broken.csv")
    page.get_by_role("button", name="Check it").click()
    page.wait_for_selector(".error .lead")
    assert "broken.csv" in page.inner_text(".error .lead")
    table = Path(api.__file__).parent / "data/measurements/korthikanti2022_iteration.csv"
    page.set_input_files("#upload", table)
    page.get_by_role("button", name="Check it").click()
    page.wait_for_selector(".plot svg")
    assert "Predictions for korthikanti2022_iteration" in page.inner_text("#answer")
    assert complaints == []


def test_a_dead_server_is_told_and_the_last_answer_stays(page: "Page", complaints: list[str]) -> None:
    command = [sys.executable, "-m", "meshwise", "ui", "--port", "0", "--no-browser"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout
        told = process.stdout.readline()
        page.goto(f"{told.split()[2].rstrip('/')}/plan?{SMALL}")
        settle(page)
        process.send_signal(signal.SIGSTOP)  # the next question is asked and not answered
        page.select_option("#f-precision", "fp8")
        page.wait_for_selector("#answer[aria-busy=true]")
        process.kill()
        process.wait()
        page.wait_for_selector(".offline")
        assert "meshwise ui" in page.inner_text(".offline")
        assert layouts(page)
    finally:
        process.kill()
        process.wait()
        assert process.stdout
        process.stdout.close()
    assert all("ERR_" in complaint or "Failed to load" in complaint for complaint in complaints)


def test_dark_and_light_follow_the_system_and_the_switch(browser: "Browser", server: Server, complaints: list[str]) -> None:
    def brightness(page: "Page") -> float:
        colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
        return sum(map(float, re.findall(r"[\d.]+", colour)[:3])) / 3

    with opened(browser, complaints, color_scheme="dark") as page:
        page.goto(f"{server.address}/plan")
        assert brightness(page) < 60
        page.click("#theme")
        assert brightness(page) > 200
        page.reload()
        assert brightness(page) > 200
    with opened(browser, complaints, color_scheme="light") as page:
        page.goto(f"{server.address}/plan")
        assert brightness(page) > 200
    assert complaints == []


def test_sliders_move_the_question_and_charts_follow(page: "Page", server: Server, complaints: list[str]) -> None:
    page.goto(f"{server.address}{SHOWN['what-if']}")
    settle(page)
    before = page.locator("[data-metric=tokens] svg").inner_html()
    page.focus("#slide-batch")
    page.keyboard.press("ArrowRight")
    page.wait_for_function("() => location.search.includes('at.batch=2M')")
    settle(page)
    assert page.locator(".slider.moved output").inner_text() == "2M"
    assert page.locator("[data-metric=tokens] svg").inner_html() != before
    assert complaints == []


def test_the_groups_of_a_device_are_outlined_and_the_timeline_zooms(page: "Page", server: Server, complaints: list[str]) -> None:
    page.goto(f"{server.address}{SHOWN['mesh']}")
    page.hover("[data-rank='37']")
    assert "Rank 37 (node 4, device 5): stage 1" in page.inner_text("#device")
    assert page.locator(".rank.in-tp").count() == 3
    assert page.locator(".rank").count() == 384
    page.goto(f"{server.address}{SHOWN['timeline']}")
    canvas = page.locator("#gantt canvas")
    canvas.hover(position={"x": 60, "y": 10})
    assert "Stage 0, forward of micro-batch" in page.inner_text("#operation")
    before = canvas.evaluate("(c) => c.toDataURL()")
    page.click("[data-zoom=in]")
    assert canvas.evaluate("(c) => c.toDataURL()") != before
    assert complaints == []


def test_a_run_is_followed_as_it_trains(browser: "Browser", tmp_path: Path, complaints: list[str]) -> None:
    from meshwise.workers.trainer.contract.rows import add_row, step_row
    from support.tiny_runs import WHOLE, steps

    WHOLE.write(tmp_path / "config.json")
    made = steps(*[1.0] * 6)
    add_row(tmp_path / "steps.jsonl", step_row(made[0]))
    with serving(named.read([tmp_path])) as server, opened(browser, complaints) as page:
        page.goto(f"{server.address}/runs")
        page.wait_for_selector("[data-run-chart=loss] svg")
        assert "running, step 1 of 6" in page.inner_text("[data-state]")
        for step in made[1:]:
            add_row(tmp_path / "steps.jsonl", step_row(step))
        page.wait_for_function("() => document.querySelector('[data-state]').textContent.includes('done, step 6 of 6')")
        drawn = page.locator("[data-run-chart=loss] svg g[stroke-width='2'] path").last.get_attribute("d") or ""
        assert drawn.count("L") == 5
    assert complaints == []


def test_a_running_search_is_cancelled_and_the_last_answer_stays(page: "Page", server: Server, complaints: list[str]) -> None:
    page.goto(f"{server.address}/plan?{SMALL}")
    settle(page)
    before = layouts(page)
    page.route("**/plan?**", lambda route: None)  # an answer that does not come
    page.fill("#f-tokens", "1T")
    page.locator("#cancel").wait_for(state="visible")
    page.click("#cancel")
    settle(page)
    assert layouts(page) == before
    assert not page.locator("#cancel").is_visible()
    assert complaints == []


def test_a_list_of_names_closes_when_the_next_field_is_entered(page: "Page", server: Server, complaints: list[str]) -> None:
    page.goto(f"{server.address}/plan")
    for leave in ("Tab", "Escape"):
        page.locator("#f-model").press_sequentially("llama-3-8")
        page.locator("#o-model").wait_for(state="visible")
        page.keyboard.press(leave)
        page.wait_for_timeout(400)  # longer than names take
        assert not page.locator("#o-model").is_visible()
        page.fill("#f-model", "")
    assert complaints == []


@pytest.mark.parametrize("name", SHOWN)
def test_no_page_complains_or_overflows_or_shuts_anybody_out(
    browser: "Browser", server: Server, complaints: list[str], name: str
) -> None:
    """The console has no error, axe-core finds no serious violation in either theme, and a phone needs no sideways scrolling."""
    found: list[Any] = []
    for theme, viewport in (("light", None), ("dark", NARROW)):
        with opened(browser, complaints, color_scheme=theme, **({"viewport": viewport} if viewport else {})) as page:
            page.goto(f"{server.address}{SHOWN[name]}")
            settle(page)
            wide = page.evaluate("[document.documentElement.scrollWidth, innerWidth]")
            assert wide[0] <= wide[1]
            page.evaluate(AXE.read_text(encoding="utf-8"))
            result = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
            found += [
                f"{theme}: {each['id']}: {json.dumps(each['nodes'][0]['target'])} {each['nodes'][0]['failureSummary']}"
                for each in result["violations"]
                if each["impact"] in ("serious", "critical")
            ]
    assert found == []
    assert [text for text in complaints if name != "error" or not re.search("400|422", text)] == []


def test_a_page_does_not_jump_while_it_loads(page: "Page", server: Server) -> None:
    page.add_init_script(
        """window.shift = 0; new PerformanceObserver((list) => {
            for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shift += entry.value;
        }).observe({ type: "layout-shift", buffered: true });"""
    )
    page.goto(f"{server.address}/plan?{BLOOM}")
    settle(page)
    assert page.evaluate("window.shift") < 0.05
