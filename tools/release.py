"""Build a release, check it as a stranger would use it, and tag it. The checklist is docs/releasing.md.

python tools/release.py --check                      build, and try the wheel and the sdist in clean environments of this Python
python tools/release.py --check --python python3.13  of others too (several times)
python tools/release.py                              the same, then tag vX.Y.Z (nothing is pushed)
"""

import argparse
import os
import re
import resource
import shutil
import subprocess
import sys
import tarfile
import time
import venv
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).parent.parent
BUILD = ROOT / "build" / "release"
SCRATCH = ROOT / "build" / "release-scratch"
MAX_BYTES = 5_000_000
MAX_SECONDS = 30.0
"""From pip install in an empty environment to the answer to README's first command, download included."""
CORE = {"typer", "rich", "numpy", "huggingface-hub", "gguf", "pyyaml"}
"""What the core depends on: no torch."""


def run(*words: str | Path, cwd: Path = ROOT) -> str:
    """Run a program, and return what it prints; stop with its error."""
    done = subprocess.run([str(word) for word in words], cwd=cwd, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(map(str, words))}: exit {done.returncode}\n{done.stdout}{done.stderr}")
    return done.stdout


def version() -> str:
    found = re.search(r'VERSION = "(.+)"', (ROOT / "src/meshwise/version.py").read_text(encoding="utf-8"))
    assert found
    return found[1]


def check_texts(tag: str) -> None:
    """Every text that states the version states this one."""
    number = version()
    if tag and tag != f"v{number}":
        raise SystemExit(f"tag {tag}: the version is {number}")
    if f"version: {number}\n" not in (ROOT / "CITATION.cff").read_text(encoding="utf-8"):
        raise SystemExit(f"CITATION.cff does not state version {number}")
    heading = next(line for line in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8").splitlines() if line.startswith("## "))
    if not heading.startswith(f"## {number}"):
        raise SystemExit(f"CHANGELOG.md begins with '{heading}', not with {number}")
    if tag and "unreleased" in heading:
        raise SystemExit(f"CHANGELOG.md still says '{heading}': put the day of the release there")


def build(tagged: bool) -> tuple[Path, Path]:
    """Build the sdist, and the wheel from it; return both after looking at their contents."""
    shutil.rmtree(BUILD, ignore_errors=True)
    tools = SCRATCH / "tools"
    if not (tools / "bin" / "twine").exists():
        venv.create(tools, with_pip=True)
        run(tools / "bin" / "pip", "install", "--quiet", "build", "twine")
    run(tools / "bin" / "python", "-m", "build", "--outdir", BUILD, ROOT)
    run(tools / "bin" / "twine", "check", "--strict", *BUILD.iterdir())
    (wheel,), (sdist,) = BUILD.glob("*.whl"), BUILD.glob("*.tar.gz")
    for file in (wheel, sdist):
        if file.stat().st_size > MAX_BYTES:
            raise SystemExit(f"{file.name}: {file.stat().st_size:,} bytes; expected at most {MAX_BYTES:,}")
        print(f"{file.name}: {file.stat().st_size / 1e6:.2f} MB")
    with ZipFile(wheel) as archive, tarfile.open(sdist) as sources:
        names, listed = archive.namelist(), sources.getnames()
        metadata = archive.read(next(name for name in names if name.endswith("METADATA"))).decode()
    assert "meshwise/data/built.json" in names, "the wheel does not know its commit"
    assert any(name.endswith("src/meshwise/data/built.json") for name in listed), "the sdist does not know its commit"
    if "meshwise/ui/web/site/index.html" not in names:
        print("the wheel has no manual for `meshwise ui`: run make site first")
        assert not tagged, "a release has the manual"
    core = {
        re.split(r"[><=]", line.split()[1])[0].lower()
        for line in metadata.splitlines()
        if line.startswith("Requires-Dist") and "extra" not in line
    }
    if core != CORE:
        raise SystemExit(f"the core depends on {', '.join(sorted(core))}; expected {', '.join(sorted(CORE))}")
    return wheel, sdist


def first_command() -> list[str]:
    """Return the first command of README."""
    line = re.search(r"^\$ (meshwise .*)$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert line
    return line[1].split()


def spent() -> float:
    """Return the seconds of CPU that programs have taken so far: what remains of a duration on a busy machine."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def answer(program: Path | str, where: str, start: float, cpu: float) -> None:
    """README's first command must answer from an empty folder."""
    folder = SCRATCH / "elsewhere"
    folder.mkdir(parents=True, exist_ok=True)
    out = run(program, *first_command()[1:], cwd=folder)
    assert "reproduce: meshwise plan" in out, out
    stated = run(program, "--version", cwd=folder).strip()
    assert re.fullmatch(rf"meshwise {re.escape(version())} \(commit [0-9a-f]+, data of [\d-]+\)", stated), stated
    seconds, used = time.monotonic() - start, spent() - cpu
    late = "" if seconds <= MAX_SECONDS else f", above {MAX_SECONDS:.0f} s"
    print(f"{where}: {stated}; {seconds:.1f} s from install to answer ({used:.1f} s of CPU){late}")


def try_pip(python: str, file: Path) -> None:
    """Install into an empty environment, with what it needs from the package index, and ask."""
    folder = SCRATCH / "clean"
    shutil.rmtree(folder, ignore_errors=True)
    run(python, "-m", "venv", folder)
    start, cpu = time.monotonic(), spent()
    run(folder / "bin" / "pip", "install", "--quiet", "--disable-pip-version-check", "--no-cache-dir", file)
    name = run(folder / "bin" / "python", "--version").strip()
    answer(folder / "bin" / "meshwise", f"pip, {name}, {file.suffix.removeprefix('.')}", start, cpu)


def try_tools(wheel: Path) -> None:
    """Install with pipx and uv into folders of their own, and ask; ask once more without installing, by uvx and pipx run."""
    home = SCRATCH / "tool-home"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    own = {"PIPX_HOME": home / "pipx", "PIPX_BIN_DIR": home / "bin", "PIPX_MAN_DIR": home / "man",
           "UV_TOOL_DIR": home / "uv", "UV_TOOL_BIN_DIR": home / "uv-bin"}  # fmt: skip
    os.environ.update({name: str(folder) for name, folder in own.items()})
    for program, folder, words in (("pipx", "bin", ("pipx", "install")), ("uv", "uv-bin", ("uv", "tool", "install"))):
        if shutil.which(program) is None:
            print(f"{program}: not installed here, not tried")
            continue
        start, cpu = time.monotonic(), spent()
        run(*words, wheel, cwd=home)
        answer(home / folder / "meshwise", " ".join(words), start, cpu)
    for words in (("uvx", "--from"), ("pipx", "run", "--spec")):
        if shutil.which(words[0]) is not None:
            start = time.monotonic()
            out = run(*words, wheel, *first_command(), cwd=home)
            assert "reproduce: meshwise plan" in out, out
            print(f"{' '.join(words)}: answers in {time.monotonic() - start:.1f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="do not tag")
    parser.add_argument("--tag", default="", help="the tag that the version must have")
    parser.add_argument("--python", action="append", default=[], help="Python to try")
    given = parser.parse_args()
    tag = given.tag or ("" if given.check else f"v{version()}")
    check_texts(tag)
    if not given.check and run("git", "status", "--porcelain"):
        raise SystemExit("there are changes that are not committed")
    wheel, sdist = build(bool(tag))
    for python in given.python or [sys.executable]:
        try_pip(python, wheel)
        try_pip(python, sdist)
    try_tools(wheel)
    if not given.check:
        run("git", "tag", "--annotate", tag, "--message", f"meshwise {version()}")
        print(f"tagged {tag}; publish with: git push origin {tag}")


if __name__ == "__main__":
    main()
