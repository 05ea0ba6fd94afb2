"""Facts read by a pattern: whatever a file or a recorded answer holds, it is a fact or Unknown."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks.framework.patterns import answered, count_of, matched, of
from checks.framework.unknown import Unknown

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda part: st.lists(part, max_size=3) | st.dictionaries(st.text(max_size=3), part),
    max_leaves=6,
)
UNREAD = Unknown("/x: Permission denied", code="EACCES")


@given(st.text())
def test_a_text_has_the_pattern_or_is_unknown_with_the_reason_beside_it(text: str) -> None:
    number = matched(text, r"\A([0-9]{1,9})\Z", int, "/x: not a number:")
    if isinstance(number, Unknown):
        assert number.reason.startswith("/x: not a number: ")
    else:
        assert text == str(number).rjust(len(text), "0")


@given(PLAIN)
def test_an_answer_has_the_fields_or_is_unknown(answer: object) -> None:
    """A list where a dict was recorded, a text where a number was: no error leaves it."""
    taken = answered(answer, lambda has: count_of(has["n"]), "x.y: has no n")
    if isinstance(taken, Unknown):
        assert taken.reason == "x.y: has no n"
    else:
        assert isinstance(answer, dict)
        assert answer["n"] == taken >= 0


def test_what_was_not_read_keeps_its_own_reason() -> None:
    assert matched(UNREAD, "x", str, "wrong") is UNREAD
    assert answered(UNREAD, lambda has: of(str, has), "wrong") is UNREAD


@pytest.mark.parametrize("value", [True, -1, 7, "1", None, 1.0])
def test_a_count_below_seven_is_no_other_value(value: object) -> None:
    assert isinstance(answered(value, lambda has: count_of(has, 7), "wrong"), Unknown)
    assert answered(6, lambda has: count_of(has, 7), "wrong") == 6


def test_a_row_is_matched_on_its_own_line_and_shown_only_where_the_reason_asks() -> None:
    text = "Name:\tCapEff:\nCapEff:\t00ff\n"
    row = r"^CapEff:[ \t]*([0-9a-f]{1,16})[ \t]*$"
    assert matched(text, row, lambda bits: int(bits, 16), "no CapEff") == 255
    absent = matched("CapEff:\n00ff\n", row, str, "no CapEff")
    assert isinstance(absent, Unknown)
    assert absent.reason == "no CapEff"
