"""Take the pictures that docs/use/ui.md shows, each of a page at a width and in a theme, in a real browser. `make screenshots`.

    python tools/screenshots.py [--runs FOLDER]

The page Runs shows the runs in FOLDER; without it, two short ones are trained first, which needs torch.
"""

import argparse
import io
import re
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tests"))

from PIL import Image

from meshwise import api
from meshwise.ui.web import named
from support.browser import NARROW, chromium, opened, settle
from support.pages import BLOOM, CARDS, serving

FOLDER = ROOT / "docs" / "pictures" / "ui"
SHOWN = ROOT / "docs" / "use" / "ui.md"
VIEWPORTS = {"wide": {"width": 1280, "height": 800}, "narrow": NARROW}
COLOURS = 64
"""Colours of a picture: enough for flat pages, and half of the bytes."""
LLAMA = "model=llama-3-70b&on=64x8xh100-sxm&batch=4M&tokens=15T"
PAGES = {
    "start": "/",
    "plan": f"/plan?{BLOOM}&a=1&b=3",
    "serve": f"/serve?{CARDS}",
    "what-if": f"/what-if?{LLAMA}&x=nodes",
    "heat-map": f"/what-if?{LLAMA}&x=nodes&y=batch",
    "mesh": f"/mesh?{BLOOM}",
    "timeline": f"/timeline?{BLOOM}",
    "count": "/count?model=llama-3-70b%2C+deepseek-v3%2C+bloom-176b",
    "accuracy": "/accuracy?table=maxtext_tpu",
    "audit": "/audit?params=124M&seq=128&batch=16%2Fgpu&on=8xh100-sxm&step=7.5s&mfu=40%25",
    "runs": "/runs",
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=Path, help="folder of runs to show")
    parser.add_argument("--only", default="", help="take this page alone")
    given = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        shown = named.read([given.runs or trained(Path(folder))])
        total = 0
        with serving(shown) as server, chromium() as browser:
            names = re.findall(r"pictures/ui/([\w-]+)-(wide|narrow)-(light|dark)\.webp", SHOWN.read_text(encoding="utf-8"))
            for name, width, theme in dict.fromkeys(each for each in names if given.only in ("", each[0])):
                picture = FOLDER / f"{name}-{width}-{theme}.webp"
                with opened(browser, [], color_scheme=theme, viewport=VIEWPORTS[width]) as page:
                    page.goto(f"{server.address}{PAGES[name]}")
                    if name != "start":  # whose forms have no answer yet
                        settle(page)
                    picture.write_bytes(smaller(page.screenshot()))
                total += picture.stat().st_size
                print(f"{picture.relative_to(ROOT)}: {picture.stat().st_size / 1024:.0f} KiB", flush=True)
    print(f"{total / 1024:.0f} KiB in all")


def trained(folder: Path) -> Path:
    """Train a tiny model twice; return the folder of both runs."""
    for batch in ("8x64", "16x64"):
        api.run("llama-debug", steps=20, batch=batch, out=folder / f"batch-{batch}", say=lambda line: None)
    return folder


def smaller(picture: bytes) -> bytes:
    """Return a picture with a palette, as WebP without loss: two thirds of a PNG."""
    out = io.BytesIO()
    flat = Image.open(io.BytesIO(picture)).convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE)
    flat.convert("RGB").save(out, "WEBP", lossless=True)
    return out.getvalue()


if __name__ == "__main__":
    main()
