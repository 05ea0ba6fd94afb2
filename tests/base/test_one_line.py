"""A text that is too long for its place ends with a whole word."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from preflight.base.one_line import shortened


def test_a_shortened_text_ends_with_a_whole_word_where_it_has_one() -> None:
    assert shortened("need 120000 pages", 17) == "need 120000 pages"
    assert shortened("need 120000 pages", 16) == "need 120000 ..."
    assert shortened("need 120000 pages", 12) == "need ..."
    assert shortened("120000", 5) == "12..."


@given(st.text(alphabet="ab ", max_size=40), st.integers(0, 30))
def test_a_shortened_text_is_no_longer_than_its_place(text: str, most: int) -> None:
    found = shortened(text, most)
    assert len(found) <= most
    assert found == text or len(text) > most
