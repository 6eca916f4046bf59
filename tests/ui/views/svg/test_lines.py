"""A figure over the steps of a run as a picture."""

import re
from xml.etree import ElementTree

from hypothesis import given
from hypothesis import strategies as st

from meshwise.ui.views.svg.lines import HEIGHT, WIDTH, lines


@given(
    st.lists(st.floats(allow_nan=True, allow_infinity=True, width=32), max_size=40), st.one_of(st.none(), st.floats(1e-6, 1e6))
)
def test_every_finite_value_is_a_point_inside_the_picture(values: list[float], predicted: float | None) -> None:
    text = lines("loss <of> a run", values, predicted)
    ElementTree.fromstring(text)
    drawn = re.search(r'<path d="M([^"]*)" fill="none"', text)
    known = [value for value in values if abs(value) < float("inf")]
    points = drawn[1].split("L") if drawn else []
    assert len(points) == len(known)
    for point in points:
        x, y = map(float, point.split())
        assert -0.1 <= x <= WIDTH + 0.1
        assert -0.1 <= y <= HEIGHT + 0.1
    assert ("predicted" in text) == (predicted is not None)
