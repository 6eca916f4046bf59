"""Units: text that a user types has one meaning, or is refused with the reason, and printed numbers are read back."""

import math
from itertools import product

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from meshwise import units
from meshwise.errors import UserError
from support.command import one_line
from support.every import check_every

quantities = st.sampled_from(sorted(units.QUANTITIES))
magnitudes = st.builds(lambda mantissa, exponent: mantissa * 10.0**exponent, st.floats(1, 9.9999), st.integers(-12, 24))
HOUR = 3600


def refused(text: object, quantity: str) -> str:
    with pytest.raises(UserError) as caught:
        units.parse(text, quantity)
    return one_line(caught.value)


WRITTEN = [
    ("4M", "count", 4e6),
    ("4M tokens", "count", 4e6),
    ("15T", "count", 15e12),
    ("70b parameters", "count", 70e9),
    ("125m", "count", 125e6),
    ("1,000,000", "count", 1e6),
    ("1_000_000", "count", 1e6),
    ("1e3", "count", 1e3),
    ("4096", "length", 4096),
    ("4k", "length", 4096),
    ("128k", "length", 131072),
    ("128K tokens", "length", 131072),
    ("1M", "length", 2**20),
    ("80GiB", "bytes", 80 * 2**30),
    ("80GB", "bytes", 80e9),
    ("80 GB", "bytes", 80e9),
    (" 512MB ", "bytes", 512e6),
    ("8bit", "bytes", 1),
    ("3.35TB/s", "bytes/s", 3.35e12),
    ("400Gbps", "bytes/s", 5e10),  # 400 / 8 = 50 GB/s
    ("400Gb/s", "bytes/s", 5e10),
    ("400Gbit/s", "bytes/s", 5e10),
    ("1.5us", "seconds", 1.5e-6),
    ("1.5µs", "seconds", 1.5e-6),  # the micro sign
    ("1.5μs", "seconds", 1.5e-6),  # the Greek letter
    ("20ms", "seconds", 0.02),
    ("2min", "seconds", 120),
    ("30d", "seconds", 2_592_000),
    ("989T", "FLOP/s", 989e12),
    ("989TFLOP/s", "FLOP/s", 989e12),
    ("989 TFLOPS", "FLOP/s", 989e12),
    ("2%", "share", 0.02),
    ("0.02", "share", 0.02),
    ("300W", "watts", 300),
    ("1.2kW", "watts", 1200),
    ("1.98GHz", "hertz", 1.98e9),
    ("$1,599", "dollars", 1599),
    ("$30k", "dollars", 30_000),
    ("$2.5/h", "dollars/s", 2.5 / HOUR),
    ("2.5$/h", "dollars/s", 2.5 / HOUR),
    (".5s", "seconds", 0.5),
    ("0B", "bytes", 0),
]


def test_common_spellings_are_parsed() -> None:
    def check(text: str, quantity: str, value: float) -> None:
        assert units.parse(text, quantity) == pytest.approx(value, rel=1e-12, abs=0)

    check_every(check, WRITTEN)


@given(quantities, st.integers(0, 10**15) | st.floats(0, 1e300))
def test_a_plain_number_is_in_si_already(quantity: str, value: float) -> None:
    assert units.parse(value, quantity) == value


def test_bits_are_not_bytes() -> None:
    assert units.parse("8Gbps", "bytes/s") == units.parse("1GB/s", "bytes/s") == 1e9


def test_a_gibibyte_is_more_than_a_gigabyte() -> None:
    assert units.parse("1GiB", "bytes") / units.parse("1GB", "bytes") == 1.073741824  # 2^30 / 10^9


@pytest.mark.parametrize("text", ["80gb", "400Gb", "80Gb", "80kb", "80mB"])
def test_a_size_that_could_be_bits_or_bytes_is_refused_rather_than_guessed(text: str) -> None:
    message = refused(text, "bytes")
    assert repr(text) in message
    assert "B for bytes" in message
    assert "80GiB" in message


@pytest.mark.parametrize(
    ("text", "quantity", "words"),
    [
        ("80GB", "bytes/s", "is not a bandwidth but a size in bytes; expected something like 3.35TB/s"),
        ("3.35TB/s", "bytes", "is not a size in bytes but a bandwidth; expected something like 80GiB"),
        ("1.5us", "bytes", "is not a size in bytes but a time"),
        ("300W", "seconds", "is not a time but a power"),
        ("$2.5/h", "dollars", "is not a price in dollars but a price per hour"),
        ("$30k", "dollars/s", "is not a price per hour but a price in dollars"),
        ("80", "bytes", "it has no unit; expected something like 80GiB"),
        ("80 bananas", "bytes", "unknown unit 'bananas'"),
        ("4", "seconds", "it has no unit; expected something like 1.5us"),
    ],
)
def test_a_wrong_unit_names_what_was_given_and_what_was_expected(text: str, quantity: str, words: str) -> None:
    message = refused(text, quantity)
    assert repr(text) in message
    assert words in message


@pytest.mark.parametrize("text", ["1,5us", "1,50us", "1,2345s", "$2,5/h", "1.2.3s"])
def test_a_decimal_comma_is_refused_rather_than_read_as_thousands(text: str) -> None:
    assert repr(text) in refused(text, "dollars/s" if "$" in text else "seconds")


BAD_TEXTS = ["", " ", "nan", "inf", "-inf", "-1", "-4M", "-80GiB", "1e999", "9" * 400, "GB", "$", "\x00"]
BAD_VALUES = [None, True, False, [], [1], {}, {"a": 1}, b"4M", 4j, math.nan, math.inf, -math.inf, -1, -0.5, 10**400]


@pytest.mark.parametrize("values", [BAD_TEXTS, BAD_VALUES], ids=["text", "other"])
def test_text_that_is_not_a_number_of_at_least_zero_is_refused(values: list[object]) -> None:
    def check(value: object, quantity: str) -> None:
        assert units.QUANTITIES[quantity].what in refused(value, quantity)

    check_every(check, product(values, units.QUANTITIES))


def test_a_number_too_long_to_print_is_refused() -> None:
    assert "<int> is too large for a size in bytes" in refused(16**5000, "bytes")


@given(quantities, st.text() | st.text("0123456789.,_eE+-$ kKMGTiBbps/hWFLOPtokens"))
@example("seconds", "1" * 5000 + "..")
def test_any_text_is_a_finite_number_from_zero_up_or_one_line_of_error(quantity: str, text: str) -> None:
    try:
        value = units.parse(text, quantity)
    except UserError as error:
        message = one_line(error)
        assert len(message) < 300
    else:
        assert math.isfinite(value)
        assert value >= 0


SHOWN = [
    (80 * 2**30, "bytes", "85.9 GB"),
    (3.35e12, "bytes/s", "3.35 TB/s"),
    (989.4e12, "FLOP/s", "989.4 TFLOP/s"),
    (300, "watts", "300 W"),
    (1.98e9, "hertz", "1.98 GHz"),
    (70.55e9, "count", "70.55B"),
    (15e12, "count", "15T"),
    (131072, "length", "128k"),
    (2**30, "length", "1024M"),
    (1.5e-6, "seconds", "1.5 us"),
    (90, "seconds", "90 s"),
    (30 * 86400, "seconds", "30 d"),
    (1599, "dollars", "$1,599"),
    (2.5 / HOUR, "dollars/s", "$2.50/h"),
    (0, "bytes", "0 B"),
]


def test_a_number_is_shown_as_people_write_it() -> None:
    def check(value: float, quantity: str, text: str) -> None:
        assert units.show(value, quantity) == text

    check_every(check, SHOWN)


def test_memory_can_be_shown_in_powers_of_two() -> None:
    assert units.show(80 * 2**30, "bytes", binary=True) == "80 GiB"
    assert units.show(512, "bytes", binary=True) == "512 B"


@given(st.sampled_from(sorted(set(units.QUANTITIES) - {"dollars", "dollars/s"})), magnitudes, st.integers(2, 12))
def test_printed_numbers_read_back_within_the_digits_shown(quantity: str, value: float, digits: int) -> None:
    text = units.show(value, quantity, digits=digits)
    # d significant digits: half a unit of the last one, at worst 0.5 * 10^(1 - d) of the value
    assert units.parse(text, quantity) == pytest.approx(value, rel=0.5000001 * 10.0 ** (1 - digits), abs=0)


@given(st.sampled_from(["bytes", "bytes/s"]), magnitudes)
def test_powers_of_two_read_back_too(quantity: str, value: float) -> None:
    text = units.show(value, quantity, binary=True)
    assert units.parse(text, quantity) == pytest.approx(value, rel=5.000001e-4, abs=0)


@given(st.sampled_from([("dollars", 1), ("dollars/s", HOUR)]), st.floats(0, 1e9))
def test_prices_read_back_to_the_cent(kind: tuple[str, int], value: float) -> None:
    quantity, per = kind
    shown = units.parse(units.show(value, quantity), quantity)
    assert shown * per == pytest.approx(value * per, rel=1e-12, abs=0.005001)


def test_the_examples_an_error_gives_are_themselves_valid() -> None:
    def check(sample: str, quantity: str) -> None:
        assert units.parse(sample, quantity) > 0

    check_every(check, ((sample, name) for name, kind in units.QUANTITIES.items() for sample in kind.examples.split(", ")))


@given(magnitudes, st.sampled_from(("bytes", "bytes/s", "length", "count", "seconds", "FLOP/s", "share", "dollars/s")))
@example(value=5e10, quantity="bytes/s")
@example(value=2592000.0, quantity="seconds")
@example(value=2.505 / 3600, quantity="dollars/s")
@example(value=1e305, quantity="dollars/s")  # per hour it is no number any more
def test_exact_text_is_read_back_to_the_same_number(value: float, quantity: str) -> None:
    text = units.exactly(value, quantity)
    assert units.parse(text, quantity) == value
    assert " " not in text


def test_exact_text_is_as_short_as_possible() -> None:
    assert [units.exactly(5e10, "bytes/s"), units.exactly(30 * 86400, "seconds"), units.exactly(4096, "length")] == [
        "50GB/s",
        "30d",
        "4k",
    ]


def test_figures_for_people_have_commas_and_no_exponents() -> None:
    assert [units.figure(value) for value in (7.6, 0.01234, 999.7, 1234.5, math.inf)] == [
        "7.6",
        "0.0123",
        "1,000",
        "1,230",
        "inf",
    ]
    assert [units.figure(value, 4) for value in (12345.6, 1234.5, 999.96)] == ["12,350", "1,234", "1,000"]
