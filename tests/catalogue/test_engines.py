"""Runtimes: engines by name, and the room that they leave on a device."""

import pytest

from meshwise.catalogue.chips import find_chip
from meshwise.catalogue.engines import find_runtime, runtimes
from meshwise.errors import UserError
from meshwise.models.model import families
from support.serve_tables import GIB


def test_every_engine_is_found_by_its_key_and_its_name() -> None:
    for key, runtime in runtimes().items():
        assert find_runtime(key) is find_runtime(runtime.name.upper()) is runtime
        assert runtime.fitted_on
        assert runtime.sources


def test_an_unknown_engine_is_offered_the_nearest() -> None:
    with pytest.raises(UserError, match=r"unknown engine 'llamacp'; did you mean 'llama.cpp'"):
        find_runtime("llamacp")


def test_windows_are_named_by_model_types_that_exist() -> None:
    known = {kind for family in families().values() for kind in family.model_types} | {"all"}
    assert {kind for runtime in runtimes().values() for kind in runtime.windows} <= known


def test_a_program_cannot_use_all_memory_of_a_device() -> None:
    """Of an RTX 3090 CUDA reports 23.7 of 24 GiB; Metal recommends three quarters of 192 GB; vLLM takes 0.9 by default."""
    llama, vllm = find_runtime("llama.cpp"), find_runtime("vllm")
    assert (llama.room(find_chip("rtx3090")) + llama.context) / GIB == pytest.approx(23.7, abs=0.02)
    assert (llama.room(find_chip("m2-ultra")) + llama.context) / GIB == 144
    assert vllm.room(find_chip("h100-sxm")) < 0.9 * find_chip("h100-sxm").memory
