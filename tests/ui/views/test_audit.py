"""The audit on a terminal: the table of runs, findings with their places, suggestions and the verdict."""

from rich.console import Console, RenderableType

from meshwise.audit.doctor.parts import PartComparison, Row
from meshwise.ui.views.audit import audit_view, parts_view
from support.audits import audit_of


def shown(view: RenderableType, width: int = 300) -> str:
    console = Console(width=width)
    with console.capture() as captured:
        console.print(view, soft_wrap=True)
    return captured.get()


def test_a_training_log_shows_measured_beside_predicted_and_no_axis_that_is_off():
    audit = audit_of("torchtitan-8b.log")
    (predicted,) = audit.predictions.train
    text = shown(audit_view(audit, 120))
    assert "torchtitan-8b.log: torchtitan, 1 run\n" in text
    assert "/ predicted" in text
    assert f"48.1 / {predicted.memory / 1e9:.1f}" in text  # 44.83 GiB measured
    assert " dp64 tp1 pp1  " in text
    assert "mbs0" not in text
    assert text.rstrip().endswith(f"The measured step time is {predicted.ratio:.2f} times the predicted one.")


def test_a_finding_shows_its_certainty_arithmetic_and_places():
    text = shown(audit_view(audit_of("tuning-notes.md"), 120))
    assert (
        "certain seconds and TFLOP/s are swapped: read 134.02 s and 120.29 TFLOP/s\n        120.29 s and 134.02 TFLOP/s printed"
        in text
    )
    assert "tuning-notes.md: line 79 (compared with tuning-notes.md: line 47)" in text
    assert "... and 17 more runs (--json has all)" in text


def test_served_models_have_a_table_of_their_own():
    text = shown(audit_view(audit_of("llama-bench.csv", planned=False), 120))
    assert "generated tok/s" in text
    assert "115.4" in text


def test_a_narrow_table_drops_columns_and_never_cuts_a_number():
    audit = audit_of("tuning-notes.md", planned=False)
    rows = {
        width: [line for line in shown(audit_view(audit, width), width).splitlines() if line.startswith(" line ")]
        for width in (60, 80, 120, 300)
    }
    for width, lines in rows.items():
        assert len(lines) == 12, width
        assert max(map(len, lines)) <= width
        assert all("844.8" in line and "4,965" in line for line in lines if line.startswith(" line 21 ")), width
        assert not any("\N{HORIZONTAL ELLIPSIS}" in line for line in lines), width
    assert "dp1 tp8 pp10" in "".join(rows[80])
    assert "Megatron + recompute x 1.000" not in "".join(rows[80])
    assert "Megatron + recompute x 1.000" in "".join(rows[300])


def test_parts_show_predicted_and_measured_side_by_side():
    rows = (Row("matmul", 0.5, 1.0), Row("idle", None, 0.25), Row("step", 0.75, 1.25))
    text = shown(parts_view(PartComparison("llama on 1 x h100", rows, ("a note",)), 120))
    matmul, idle = (next(line for line in text.splitlines() if part in line) for part in ("matmul", "idle"))
    assert matmul.split() == ["matmul", "500", "ms", "1", "s", "2.00"]
    assert idle.split() == ["idle", "250", "ms"]
    assert "a note" in text
