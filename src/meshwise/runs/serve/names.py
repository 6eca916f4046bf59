"""Models, weights and engines by the names that people write in tables."""

import re
from dataclasses import replace
from functools import cache

from meshwise.catalogue.cards import find_card
from meshwise.catalogue.chips import Chip
from meshwise.catalogue.engines import Runtime, builds_of, engines, find_runtime
from meshwise.catalogue.engines import runtime_of as engine_runtime
from meshwise.errors import UserError, quoted
from meshwise.models import find
from meshwise.models.formats import Format, Weights, as_gguf, find_format, weights
from meshwise.models.model import Model
from meshwise.runs.run import Run, whole

BACKENDS = {
    "rocm-wmma": ("rocwmma", "rocm-wmma"), "rocm": ("rocm", "hip"), "vulkan": ("vulkan", "radv", "amdvlk"), "metal": ("metal",),
    "sycl": ("sycl", "oneapi"), "cuda": ("cuda",),
}  # fmt: skip
"""Words for the library that an engine was built for."""
MIXED_TYPES = re.compile(r"^UD-|(?<=_K)_XL$", re.IGNORECASE)
"""Marks of mixes of types whose bits per weight differ from llama.cpp's own."""
MIXED_IN_GGUF = re.compile(r"^(?:UD-)?I?Q\d_(?:K|X|S|M)", re.IGNORECASE)
"""Mixes of types that only llama.cpp and its relatives write and run."""
WITHOUT_MIXES = ("vllm", "sglang", "tensorrt-llm", "transformers")
BITS_TOLERANCE = 0.01
EVALUATED_AS = "evaluated as"  # of a note on a row whose engine is not the one that it is predicted with
RELEASE, MONTH, YEAR = re.compile(r"\bv?(\d+\.\d+(?:\.\d+)?)"), re.compile(r"\b(20\d\d-\d\d)"), re.compile(r"20\d\d")
UBATCH = re.compile(r"n_ubatch[ =](\d+)")
PART_OF_FILE = re.compile(r"(-\d{5}-of-\d{5})?(\.gguf)?$")


def model_of(name: str) -> Model:
    """Find a model by a name as people write it: 'Llama 3.1 8B Instruct', 'GLM-4.6-UD-Q4_K_XL', a .gguf file. UserError for others.
    Nothing is downloaded."""
    if not name:
        raise UserError("the model is not stated")
    return find.named(name) or find.find_model(name, hub=False)


def format_in(name: str) -> str:
    """Return the weight format at the end of a file's name, or ''."""
    found = re.search(
        r"(?:UD-)?(?:I?Q\d[\w]*|F16|BF16|FP8|MXFP4|NVFP4|AWQ|GPTQ|[48]bit)$", PART_OF_FILE.sub("", name), re.IGNORECASE
    )
    return found[0] if found else ""


@cache
def weights_of(model: str, quant: str, engine: str, bits: float) -> Weights:
    """Return the weights of a model in the row's quantization, a .gguf's as stored; `bits` decides between mixes that share a name."""
    stored, runtime = find.find_model(model), find_runtime(engine)
    if stored.tensors:  # a .gguf file states its own types
        return weights(stored)
    if not quant:
        raise UserError("the quantization is not stated")
    fmt = find_format(MIXED_TYPES.sub("", quant).replace("_XL", "_M") if MIXED_TYPES.search(quant) else quant)
    if not runtime.gguf and fmt.gguf:
        fmt = _same_width(fmt, runtime)
    found = weights(stored, as_gguf(fmt) if runtime.gguf else fmt, by_file=runtime.files_by_order)
    factor = bits / found.bits_per_weight if bits > 0 else 1.0
    if abs(factor - 1) < BITS_TOLERANCE:
        return found
    return replace(found, tensors=tuple(replace(weight, bytes=round(weight.bytes * factor)) for weight in found.tensors))


def _same_width(fmt: Format, runtime: Runtime) -> Format:
    """Return the format of an engine without GGUF files that is as wide as a GGUF type: MLX users write Q4 for 4 bits."""
    digits = next((letter for letter in fmt.name if letter.isdecimal()), "4")
    if fmt.name in ("F16", "BF16", "F32"):
        return find_format({"F16": "fp16", "BF16": "bf16", "F32": "fp32"}[fmt.name])
    wide = int(digits) > 5
    return find_format(("mlx-8bit" if wide else "mlx-4bit") if runtime.engine == "mlx" else "fp8" if wide else "awq")


def runtime_of(run: Run, model: Model, assumed: list[str]) -> Runtime:
    """Find the engine of a run, in the build of the release or of the date that the run states."""
    text = run.text("engine").lower()
    if not text or "llama" in text:
        return _build(run, "llama.cpp", find_runtime("llama.cpp"))
    places = [
        (text.index(word), engine.key) for engine in engines().values() for word in (engine.key, *engine.words) if word in text
    ]
    if places:  # of several, the one that is named first
        engine = min(places)[1]
        quant = run.text("weights")
        if engine in WITHOUT_MIXES and MIXED_IN_GGUF.search(quant):
            assumed.append(f"{engine} does not run {quant}, a mix of llama.cpp's types: {EVALUATED_AS} llama.cpp")
            return _build(run, "llama.cpp", find_runtime("llama.cpp"))
        return _build(run, engine, engine_runtime(engines()[engine], model.model_type))
    # An unknown engine that runs GGUF files, or on a Mac, is closer to llama.cpp than to vLLM.
    quant = run.text("weights")
    local = (find_format(quant).gguf if quant else False) or card(run.text("chip")).kind in ("apple", "cpu")
    runtime = find_runtime("llama.cpp" if local else "vllm")
    assumed.append(f"engine {quoted(text)} {EVALUATED_AS} {runtime.name}")
    return runtime


def _build(run: Run, engine: str, current: Runtime) -> Runtime:
    """Return the build of an engine that a run states by release or date: the first one that is no older; `current` where none is."""
    builds = builds_of(engine)
    release = RELEASE.search(f"{run.text('era')} {run.text('engine')}")
    numbered = [build for build in builds.values() if build.releases]
    if release and numbered:
        stated = f"{release[1]}."
        return next((build for build in numbered if any(stated.startswith(f"{one}.") for one in build.releases)), current)
    stated = MONTH.search(f"{run.text('source')} {run.text('date')} {run.text('era')} {run.text('note')}")
    year = YEAR.fullmatch(run.text("date"))
    month = stated[1] if stated else f"{year[0]}-06" if year else ""
    later = [build for date, build in builds.items() if month and month <= date]
    return later[0] if later else current


def with_batch(runtime: Runtime, run: Run) -> Runtime:
    """Return the engine with the tokens of a pass, the requests admitted at once, and the passes between looks that a run states."""
    slots, passes = whole(run, "slots", default=0), whole(run, "poll_passes", default=0)
    runtime = replace(runtime, sequences=slots, large_sequences=0) if slots else runtime
    runtime = replace(runtime, poll_passes=passes or runtime.poll_passes, per_head=backend_of(run) in runtime.per_head_on)
    noted = UBATCH.search(run.text("note")) if runtime.gguf else None
    stated = whole(run, "batched_tokens", default=int(noted[1]) if noted else 0)
    if not stated:
        return runtime
    return replace(runtime, batch=stated, large_batch=0, scheduled=max(stated, runtime.scheduled) if runtime.scheduled else 0)


def backend_of(run: Run) -> str:
    """Return the library that the engine of a run was built for, or '' where it is not stated."""
    words = " ".join(run.text(name) for name in ("backend", "engine", "note")).lower()
    words = words.replace("rocwmma-improved", "rocm")
    return next((name for name, marks in BACKENDS.items() if any(mark in words for mark in marks)), "")


def card(text: str) -> Chip:
    """Find a card; words in parentheses are another name of it or its memory: 'Radeon 8060S (Strix Halo 128GB)'."""
    bare = re.sub(r"\(.*?\)", " ", text).strip()
    try:
        return find_card(text)
    except UserError:
        if bare in ("", text):
            raise
        return find_card(bare)
