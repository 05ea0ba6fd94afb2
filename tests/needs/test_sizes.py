"""Sizes are read as Mooncake's documented helper reads them, and what it guesses at is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks.framework.units import format_bytes, format_page_size, parse_size, round_up
from tests.tables import each_row


@each_row(
    ("text", "size"),
    [
        ("64gb", 64 * 2**30),
        ("64GiB", 64 * 2**30),
        ("64g", 64 * 2**30),
        (" 64gb ", 64 * 2**30),
        ("1.5gb", 1610612736),
        ("0.1gb", 107374182),
        ("2tb", 2 * 2**40),
        ("4k", 4096),
        ("1_000b", 1000),
        ("816043786240b", 816043786240),
        ("9007199254740993b", 9007199254740993),  # 2^53 + 1: a float would lose it
        ("0", 0),
        ("0.0", 0),
    ],
)
def test_sizes_that_are_read(text: str, size: int) -> None:
    assert parse_size(text) == size


@each_row(
    ("text", "says"),
    [
        ("64", "64b for 64 bytes, or 64gb for 64 GiB"),
        ("1.5", "1.5gb for 1.5 GiB"),
        ("-4gb", "negative"),
        ("nan", "not a size"),
        ("", "not a size"),
        ("1e9", "not a size"),
        ("4 gb", "not a size"),
        ("4xb", "unknown unit 'xb'"),
        ("1.2.3gb", "not a size"),
        ("0.0001b", "less than one byte"),
        ("8388608tb", "2^63"),
        ("٦٤gb", "not a size"),
        ("64gb\x00", "not a size"),
    ],
)
def test_sizes_that_are_refused(text: str, says: str) -> None:
    with pytest.raises(ValueError, match=r"^.") as refusal:
        parse_size(text)
    assert says in str(refusal.value)
    assert text.strip() in str(refusal.value) or repr(text) in str(refusal.value)


@given(st.text(max_size=40))
def test_no_text_is_read_as_anything_but_a_size(text: str) -> None:
    try:
        size = parse_size(text)
    except ValueError:
        return
    assert 0 <= size < 2**63


@given(st.integers(0, 2**40), st.sampled_from(["b", "kb", "mb", "gb", "tb"]))
def test_whole_numbers_are_exact(number: int, unit: str) -> None:
    scale = 1024 ** ["b", "kb", "mb", "gb", "tb"].index(unit)
    if number * scale < 2**63:
        assert parse_size(f"{number}{unit}") == number * scale


def test_sizes_are_printed_with_their_unit() -> None:
    shown = [format_bytes(size) for size in (0, 1023, 1024, 80 * 2**20, 72 * 2**30, 2**40)]
    assert shown == ["0 B", "1023 B", "1.00 KiB", "80.00 MiB", "72.00 GiB", "1.00 TiB"]
    assert [format_page_size(size) for size in (4096, 2**21, 2**30)] == ["4 KiB", "2 MiB", "1 GiB"]


@given(st.integers(0, 2**50), st.integers(1, 2**31))
def test_rounding_up_is_the_least_multiple(size: int, step: int) -> None:
    rounded = round_up(size, step)
    assert rounded % step == 0
    assert 0 <= rounded - size < step
