"""`meshwise plan`: mistakes, and questions without an answer."""

import re

import pytest

from support.command import POD, SMALL, Done, Run, refused, with_option

# Mistakes.


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--framework", "megatorn", "unknown framework 'megatorn'; did you mean 'megatron'?"),
        ("--optimizer", "adam", "--optimizer 'adam': expected one of adamw, adamw-fused"),
        ("--precision", "fp7", "--precision 'fp7': expected one of bf16, fp16, fp8"),
        ("--calibration", "nobody's", "unknown calibration"),
        ("--fix", "tq=8", "'tq=8' is not axis=value; did you mean 'tp'?"),
        ("--fix", "tp=8,tp=4", "tp is given twice with different values"),
        ("--fix", "tp", "'tp' is not axis=value"),
        ("--allow", "pp=12..1", "'pp=12..1' is an empty range"),
        ("--at-most", "0", "expected 1 to 1 nodes"),
        ("--at-most", "2", "expected 1 to 1 nodes"),
        ("--at-most", "some", "--at-most 'some'"),
        ("--at-most", "9" * 5000, "--at-most"),
        ("--at-most", "-1", "--at-most '-1'"),
        ("--top", "0", "--top"),
        ("--batch", "0", "is not a batch"),
        ("--batch", "many", "'many' is not"),
        ("--ramp", "16,some", "'some' is not"),
        ("--ramp", "0", "'0' is not"),
        ("--tokens", "15GB", "'15GB' is not a count"),
        ("--seq", "0", "is not a sequence length"),
        ("--mtbf", "50000", "'50000' is not a time: it has no unit"),
        ("--mtbf", "0h", "mtbf 0 is out of range: expected 1 s to"),
        ("--restart", "10GB", "'10GB' is not a time but a size in bytes"),
        ("--checkpoint-bandwidth", "0B/s", "--checkpoint-bandwidth '0B/s': expected more than 0"),
        ("--price", "$0/h", "--price '$0/h': expected more than 0"),
        ("--batch", "1e30", "a batch of '1e30' is too large: expected at most"),
        ("--spares", "-1", "--spares"),
        ("--straggler", "200%", "straggler 200% is out of range: expected 0 to 99%"),
        ("--on", "8xh100x", "h100"),
        ("--on", "2x4xrtx3090", "no network between them"),
    ],
    ids=lambda value: str(value)[:30],
)
def test_a_mistake_is_one_line_and_exit_code_2(run: Run, option: str, value: str, words: str) -> None:
    assert words in refused(run(*with_option(SMALL, option, value)))


def test_tokens_that_make_no_whole_sequences_are_refused_with_the_nearest_number_that_does(run: Run) -> None:
    """4M are 4,194,304 tokens, and 1024 sequences of 4095 are 4,193,280."""
    output = refused(run("plan", "llama-debug", "--on", "1x8xh100-sxm", "--batch", "4M", "--seq", "4095"))
    assert "not a whole number of sequences of 4,095 tokens; 1024 sequences are 4,193,280 tokens" in output


@pytest.mark.parametrize("missing", ["--on", "--batch"])
def test_a_missing_option_is_named(run: Run, missing: str) -> None:
    at = SMALL.index(missing)
    assert missing in refused(run(*SMALL[:at], *SMALL[at + 2 :]))


# Questions without an answer.


def fits_nowhere(run: Run, *arguments: str) -> str:
    done: Done = run(*arguments)
    return refused(done, code=1)


def test_a_model_that_fits_nowhere_is_exit_code_1_and_says_by_how_much(run: Run) -> None:
    output = fits_nowhere(run, "plan", "llama-3-405b", "--on", "8xrtx4090", "--batch", "8")
    needed = re.search(r"needs ([\d.]+) GiB per device", output)
    assert needed
    assert float(needed[1]) > 24
    assert "llama-3-405b does not fit on 8xrtx4090" in output


@pytest.mark.parametrize(
    ("more", "rule"),
    [
        (["--fix", "tp=2,pp=2,cp=2,dp=2"], "no layout of 8 devices satisfies --fix or --allow tp, pp, cp, dp"),  # they make 16
        (["--fix", "tp=1,pp=1,cp=1", "--batch", "7"], "dp divides the batch"),
        (["--fix", "mbs=5"], "--fix or --allow mbs"),
        (["--fix", "zero=3", "--framework", "megatron"], "--fix or --allow zero"),  # it has stage 1
        (["--ramp", "7", "--fix", "tp=1,pp=1,cp=1"], "batch 7 of the ramp-up"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_limits_that_nothing_meets_are_exit_code_1_and_named(run: Run, more: list[str], rule: str) -> None:
    assert rule in fits_nowhere(run, *SMALL, *more)


def test_a_run_that_gets_nowhere_is_exit_code_1_and_says_why(run: Run) -> None:
    output = fits_nowhere(run, *SMALL, "--mtbf", "10min", "--repair", "0s")
    assert "would make no progress on 1x8xh100-sxm" in output
    assert "restarts, with an interruption every 75 s" in output  # 10 minutes over 8 devices
    output = fits_nowhere(run, *SMALL, "--mtbf", "10h", "--repair", "100d", "--spares", "0")
    assert "goes into waiting for repair" in output


@pytest.mark.parametrize("flag", ["--json", "--csv"])
def test_no_answer_prints_no_half_a_document(run: Run, flag: str) -> None:
    fits_nowhere(run, *SMALL, "--fix", "mbs=5", flag)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--fix", "tp=3"], "--fix or --allow tp=3: none divides the 8 devices; the nearest that does is 2 or 4"),
        (["--fix", "dp=16"], "dp=16: none divides the 8 devices; the nearest that does is 8"),
        (["--allow", "pp=5..7"], "pp=5..7: none divides the 8 devices; the nearest that does is 4 or 8"),
    ],
)
def test_an_axis_that_does_not_divide_the_devices_is_refused_with_the_nearest_that_does(
    run: Run, more: list[str], message: str
) -> None:
    assert message in refused(run(*SMALL, *more))


def test_a_cluster_of_odd_nodes_is_answered_with_the_part_of_it_that_can_be_used(run: Run) -> None:
    """21 devices: 7 divides no number of heads, layers or sequences that is a power of two."""
    asked = ["plan", "llama-3-8b", "--on", "3x7xh100-sxm", "--batch", "64"]
    output = fits_nowhere(run, *asked)
    usable = re.search(
        r"no layout satisfies every rule on 21 devices; (\dx\dxh100-sxm) can be used; --batch 63: .*dropped layouts by rule: ",
        output,
    )
    assert usable
    assert run(*with_option(asked, "--on", usable[1]), "--json").code == 0


def test_fsdp_alone_has_too_few_sequences_for_a_pod_and_says_so(run: Run) -> None:
    """Part 6: pure FSDP stops at 1,024 chips, because a batch has that many sequences."""
    output = fits_nowhere(run, *POD, "--fix", "tp=1,pp=1,cp=1")
    assert "no layout with --fix or --allow tp, pp, cp satisfies every rule on 8,960 devices" in output
    assert "the batch, padded to a multiple of dp x micro-batch, grows by at most 25%" in output
    assert "heads" not in output  # rules that dropped nothing are not named
