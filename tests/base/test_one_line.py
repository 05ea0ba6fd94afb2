"""A text that is too long for its place ends with a whole word."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from preflight.base.one_line import shortened, with_last_name, with_short_paths


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


def test_a_long_path_keeps_its_end_and_what_stands_around_it() -> None:
    text = "server (/srv/production/prefill/v3/launch.sh:4): http://10.0.0.1:8080/a is not known"
    assert with_short_paths(text, 60) == text
    assert (
        with_short_paths(text, 24)
        == "server (.../v3/launch.sh:4): http://10.0.0.1:8080/a is not known"
    )
    assert with_short_paths("a/b " * 9, 4) == "a/b " * 9


@given(st.text(alphabet="ab/ (", max_size=60), st.integers(4, 30))
def test_a_text_with_short_paths_has_none_that_is_longer(text: str, most: int) -> None:
    found = with_short_paths(text, most)
    assert all(len(word) <= most for word in found.replace("(", " ").split() if "/" in word)
    assert found == text or len(found) < len(text)


def test_a_path_that_is_known_is_called_by_its_last_name() -> None:
    text = "/srv/a/launch.sh:4 rank 0: /srv/a/launch.sh.old, ./srv/a/launch.sh, (/srv/a/launch.sh)"
    assert (
        with_last_name(text, "/srv/a/launch.sh")
        == "launch.sh:4 rank 0: /srv/a/launch.sh.old, ./srv/a/launch.sh, (launch.sh)"
    )
    assert with_last_name("launch.sh:4", "launch.sh") == "launch.sh:4"
    assert with_last_name("a/b/", "a/b/") == "a/b/"
