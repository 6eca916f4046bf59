"""Facts of launch files in the forms of each program's documentation: right, wrong, or unknown.

    python benchmarks/launch/forms.py [FILE ...]      every fact that is not right, then the sums; FILE: forms.yaml of the tests

A fact that the file does not tell must be unknown: a value for it is wrong. A file that is refused leaves its facts unknown.
"""

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from meshwise.errors import UserError
from meshwise.programs.read.files import read_sources
from meshwise.programs.source import Source

FORMS = Path(__file__).parents[2] / "tests" / "fixtures" / "launch" / "forms.yaml"


def judged(form: dict[str, Any]) -> dict[str, tuple[str, object]]:
    """Return of each fact of a form, and of its program, whether what is read is right, and what is read."""
    wanted = {"program": form["program"], **form["facts"]}
    try:
        beside = [Source(name, text) for name, text in form.get("with", {}).items()]
        reading = read_sources([Source(form["file"], form["text"]), *beside], form.get("set", {}))
    except UserError as error:
        return {name: ("unknown", str(error)) for name in wanted}
    read = {name: reading.facts.value(name) for name in form["facts"]} | {"program": reading.program.name}
    return {name: (_outcome(value, read[name]), read[name]) for name, value in wanted.items()}


def _outcome(wanted: object, read: object) -> str:
    if read == wanted:
        return "right"
    return "unknown" if read is None else "wrong"


def main() -> int:
    sums: Counter[str] = Counter()
    for path in [Path(name) for name in sys.argv[1:]] or [FORMS]:
        forms = yaml.safe_load(path.read_text(encoding="utf-8"))
        for form in forms:
            for name, (outcome, value) in judged(form).items():
                sums[outcome] += 1
                if outcome != "right":
                    print(f"{form['file']}: {name}: {outcome}: {value!r}, not {form['facts'].get(name, form['program'])!r}")
        print(f"{path.name}: {len(forms)} files")
    total = sum(sums.values())
    print(", ".join(f"{sums[name]} {name} ({sums[name] / total:.1%})" for name in ("right", "wrong", "unknown")))
    return int(sums["wrong"] > 0 or sums["right"] < 0.97 * total)


if __name__ == "__main__":
    sys.exit(main())
