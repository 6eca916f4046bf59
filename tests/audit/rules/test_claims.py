"""Rules over statements: products, scaling efficiencies, spreads and abbreviations are checked, right ones raise nothing."""

from meshwise.audit.rules import claims
from meshwise.audit.rules.claims import Statement
from meshwise.runs.reading import Claim, Kind
from support.audits import figures, table


def statement(kind: Kind, *values: float, about: tuple[str, ...] = ()) -> Statement:
    return Statement("x", Claim(kind=kind, where="line 9", text="the claim", values=values, about=about))


def test_a_wrong_scaling_efficiency_is_found_with_the_right_one():
    runs = table([{"devices": 2.0, "tokens_per_second": 4000.0}, {"devices": 8.0, "tokens_per_second": 8000.0}])
    found = list(claims.efficiency([statement("efficiency", 0.9)], runs))
    assert found[0].certainty == "certain"
    assert found[0].message == "'the claim' is claimed, the rates give 50%"


def test_a_scaling_efficiency_over_unlike_or_unstated_batches_is_unusual():
    for batch, message in ((128.0, "compares batches of 64 and 128"), (None, "do not state both batches")):
        rows = [
            {"devices": 2.0, "tokens_per_second": 4000.0, "batch": 64.0},
            {"devices": 8.0, "tokens_per_second": 14400.0},
        ]
        rows[1] |= {"batch": batch} if batch else {}
        (one,) = claims.efficiency([statement("efficiency", 0.9)], table(rows))
        assert one.certainty == "unusual"
        assert message in one.message


def test_an_efficiency_without_rates_is_unusual():
    assert [one.certainty for one in claims.efficiency([statement("efficiency", 0.9)], [])] == ["unusual"]


def test_a_spread_beyond_the_claimed_one_is_found():
    runs = [figures(ranks=(100.0, 80.0, 120.0))]
    (one,) = claims.spreads([statement("spread", 0.06)], runs)
    assert "up to 20.0% off the mean" in one.message


def test_products_are_computed():
    assert list(claims.products([statement("product", 56.3e9, 8192, 8192, 3.5, 3, 80)], [])) == []  # Llama 3 70B's FFW parameters
    (one,) = claims.products([statement("product", 2048, 128, 16, 8)], [])
    assert "the factor 8 is missing" in one.message


def test_abbreviations_have_every_meaning_in_use_and_no_other():
    wrong = {
        ("rpc", "remote procedure calls"): False,
        ("rpc", "realtime communication protocol"): True,
        ("gpu", "graphics processing units"): False,
        ("xyz", "anything at all"): False,
    }
    found = {about: bool(list(claims.meanings([statement("meaning", about=about)], []))) for about in wrong}
    assert found == wrong
