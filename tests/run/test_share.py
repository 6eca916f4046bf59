"""`share` shows rows without anything personal, writes them when it is told to, and `validate` scores a folder of them."""

import json
from pathlib import Path
from typing import Any

import pytest

from meshwise import api
from meshwise.errors import UserError
from meshwise.run.serve import report

POINT: dict[str, Any] = {
    "prompt": 512, "output": 128, "users": 1, "repeats": 3, "decode": 105.0, "decode_values": [104.0, 105.0, 106.0],
    "prefill": 3100.0, "prefill_values": [3100.0], "prompt_tokens": 512, "spread": 0.01, "ttft_p50": 0.16, "notes": ["/home/me/x"],
    "faults": {}, "predicted": None,
}  # fmt: skip
FACTS = {
    "model": "/home/me/models/llama-3.1-8b", "quant": "Q4_K_M", "gpu": "rtx3090", "n_gpus": 1, "n_hosts": 1, "engine": "llama.cpp",
    "split": "none",
}  # fmt: skip


def saved(path: Path, **more: Any) -> Path:
    about = {
        "model": "/home/me/models/x.gguf",
        "engine": "llama.cpp",
        "endpoint": "http://10.0.0.7:8080",
        "command": "/home/me/llama-server",
    }
    path.write_text(json.dumps(report.report([POINT], {**about, **more})), encoding="utf-8")
    return path


def test_a_row_has_nothing_personal_and_is_scored(tmp_path: Path) -> None:
    bench = saved(tmp_path / "bench.json", facts=FACTS, power={"watts": 301.7})
    shown = api.share(bench, tmp_path / "runs")
    assert not shown.written
    assert not (tmp_path / "runs").exists()
    (row,) = shown.rows()
    assert (row["model"], row["decode_tok_s"], row["power_w"]) == ("llama-3.1-8b", "105", "302")
    assert not any(word in shown.text for word in ("home", "10.0.0.7", "/", "8080"))
    written = api.share(bench, tmp_path / "runs", write=True)
    assert written.path.read_text(encoding="utf-8") == shown.text
    scored = api.validate(tmp_path / "runs")
    assert scored.score["decode"]["rows"] == 1


def test_a_report_without_a_chip_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="which model, format and chip"):
        api.share(saved(tmp_path / "bench.json"), tmp_path)
