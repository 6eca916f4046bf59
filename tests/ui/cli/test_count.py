"""`meshwise count --on`: training on a cluster by arithmetic alone, for people and for scripts, and the errors for mistakes."""

import json

import pytest

from support.command import Run, refused, rows

POD = ["count", "llama-3-70b", "--on", "tpu-v5p:16x20x28"]


def test_the_steps_of_the_arithmetic_are_printed_with_their_numbers(run: Run) -> None:
    """How to Scale Your Model, part 6, with its 4e6 tokens a batch; 21.68 TB are 211 chips of 95.74 GiB where the book has 226 of 96 GB."""
    done = run(*POD, "--batch", "4e6", "--mfu", "40%", "--checkpoints", "4")
    assert (done.code, done.err) == (0, "")
    output = " ".join(done.out.split())
    for words in ("4.23e+11", "6.35e+24", "439 years", "44.7 days at 40% MFU", "20.97 TB", "21.68 TB", "2.4 GB", "211"):
        assert words in output
    assert "850 needed to hide the all-gather of weights" in output


def test_four_million_tokens_of_1024_are_a_thousand_sequences(run: Run) -> None:
    output = " ".join(run(*POD, "--batch", "4M").out.split())
    assert "stops at 1,024 of the 8,960 devices" in output
    assert "468 tokens per device and step" in output
    assert "40% MFU" in output  # the default


def test_a_length_in_the_batch_is_the_length_of_a_sequence(run: Run) -> None:
    assert "stops at 512 of the 8,960" in run(*POD, "--batch", "512x8192").out
    assert "stops at 512 of the 8,960" in run(*POD, "--batch", "512").out


def test_scripts_get_the_counts_with_the_budget_and_its_rooflines(run: Run) -> None:
    (row,) = json.loads(run(*POD, "--batch", "4M", "--json").out)
    assert row["parameters"]["total"] == 70553706496
    assert row["budget"]["devices"] == 8960
    assert len(row["budget"]["rooflines"]) == 4
    (flat,) = rows(run(*POD, "--batch", "4M", "--csv").out)
    assert float(flat["budget.seconds"]) == row["budget"]["seconds"]
    assert float(flat["budget.memory"]) == row["budget"]["memory"]


def test_each_of_several_models_has_its_table(run: Run) -> None:
    done = run("count", "llama-3-8b", "llama-3-70b", "--on", "jean-zay", "--batch", "2048")
    assert (done.code, done.out.count("days")) == (0, 4)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (POD, "--on needs --batch, such as --batch 4M"),
        ([*POD, "--json"], "--on needs --batch"),
        (["count", "llama-3-70b", "--batch", "4M"], "--batch needs --on: a cluster, such as"),
        (["count", "llama-3-70b", "--mfu", "40%"], "--mfu needs --on: a cluster, such as"),
        (["count", "llama-3-70b", "--checkpoints", "4"], "--checkpoints needs --on: a cluster, such as"),
        ([*POD, "--batch", "4M", "--mfu", "0"], "an MFU of 0% is impossible: expected a share of the peak, such as 40%"),
        ([*POD, "--batch", "4M", "--mfu", "140%"], "an MFU of 140% is impossible"),
        ([*POD, "--batch", "4M", "--mfu", "40"], "an MFU of 4000% is impossible"),
        ([*POD, "--batch", "4M", "--mfu", "abc"], "'abc' is not a share (such as 40%, 0.4)"),
        ([*POD, "--batch", "4M", "--mfu", "-1%"], "must be finite and not negative"),
        ([*POD, "--batch", "4M", "--checkpoints", "0"], "Invalid value for '--checkpoints'"),
        ([*POD, "--batch", "4M", "--checkpoints", "many"], "Invalid value for '--checkpoints'"),
        ([*POD, "--batch", "0"], "'0' is not a batch"),
        ([*POD, "--batch", "0.5"], "'0.5' is not a batch: expected sequences (1024) or tokens (4M)"),
        ([*POD, "--batch", "1e30"], "'1e30' is not a batch"),
        ([*POD, "--batch", "4Q"], "'4Q' is not a length in tokens"),
        (["count", "gpt2", "--on", "2xrtx3090+1xrtx3060-12gb", "--batch", "8"], "mixes chips; a budget is for one kind of chip"),
        (["count", "gpt2", "--on", "jean-zya", "--batch", "8"], "unknown cluster 'jean-zya'; did you mean 'jean-zay'?"),
        (["count", "gpt2", "--on", "tpu-v5p:17x20x28", "--batch", "8"], "does not fit in the largest pod of TPU v5p, 16x20x28"),
        (["count", "gpt2", "--on", "tpu-v5p:2x2x2x2", "--batch", "8"], "TPU v5p is a torus of 3 axes"),
        (["count", "gtp2", "--on", "jean-zay", "--batch", "8"], "unknown model 'gtp2'"),
    ],
    ids=lambda value: " ".join(value[2:]) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line_and_exit_code_2(run: Run, arguments: list[str], message: str) -> None:
    assert message in refused(run(*arguments))
