"""Environment values become what Mooncake's own code makes of them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks.releases.mooncake import NumaSegments, mooncake_release
from preflight.engines.programs.store_environment import (
    UINT64_MAX,
    boolean,
    byte_size,
    leading_digits,
    read_store_settings,
)
from tests.builders.hosts import GIB, MIB
from tests.tables import each_row


@each_row(
    ("text", "size"),
    [
        ("56gb", 56 * GIB),
        ("56G", 56 * GIB),
        ("1.5gb", 3 * GIB // 2),
        (" 64 mb ", 64 * MIB),
        ("1e8", 100_000_000),
        ("0x8000000", 128 * MIB),
        ("+5", 5),
        ("3.9", 3),
        ("0.1gb", 107374182),
        ("2tb", 2 * 1024 * GIB),
        ("infinite", UINT64_MAX),
        ("inf", 0),  # out of range, as is 1e30: no size, not the largest one
        ("1e30", 0),
        ("18446744073709551615", 0),
        ("1e19", 10**19),
        ("0e-400", 0),
        ("\v4mb", 4 * MIB),
        ("nan", 2**63),
        ("0", 0),
        *((text, None) for text in ("200MiB", "64GiB", "abc", "", "  ", "-5", "-1gb", "1e999")),
        *((text, None) for text in ("5 xb", "5gbb", "gb", "1e-400", "4mb\v")),
    ],
)
def test_byte_sizes(text: str, size: int | None) -> None:
    assert byte_size(text) == size


@pytest.mark.parametrize(
    ("text", "size"),
    [("-5", 2**64 - 5), ("-5mb", 2**64 - 5 * MIB), ("-0.5", 0), ("-1e30", 2**63), ("5", 5)],
)
def test_negative_sizes_of_the_old_releases(text: str, size: int) -> None:
    """Before 0.3.12 nothing looked for the sign: such an arena can never be mapped."""
    assert byte_size(text, negative_wraps=True) == size


def test_each_release_reads_what_it_knows() -> None:
    """ "enable" and checksums came with 0.3.13, the hot cache with 0.3.10; all were run."""
    environment = {
        "MC_MMAP_ARENA_POOL_SIZE": "-5",
        "MC_DISABLE_MMAP_ARENA": "enable",
        "MOONCAKE_STORE_CHECKSUM": "1",
        "MC_STORE_LOCAL_HOT_CACHE_SIZE": "33554432",
    }
    read = {
        version: read_store_settings(environment, mooncake_release(version))[0]
        for version in ("0.3.9", "0.3.10", "0.3.11.post1", "0.3.12", "0.3.13")
    }
    arenas = [settings.arena_bytes for settings in read.values()]
    assert arenas == [2**64 - 5] * 3 + [8 * GIB] * 2
    assert [settings.arena_disabled for settings in read.values()] == [False] * 4 + [True]
    cached = [settings.hot_cache is not None for settings in read.values()]
    assert cached == [False, True, True, True, False]


@each_row(
    ("text", "size"),
    [
        ("33554432", 33554432),
        ("4GB", 4),
        ("4e9", 4),
        ("  12 ", 12),
        ("+7", 7),
        (" -4", 2**64 - 4),
        *((text, None) for text in ("0", "-4", "GB", "", "99999999999999999999999")),
    ],
)
def test_leading_digits(text: str, size: int | None) -> None:
    assert leading_digits(text) == size


@each_row(
    ("text", "value"),
    [
        *((word, True) for word in ("1", "true", "YES", " on ", "Enable")),
        *((word, False) for word in ("0", "False", "no", "OFF", "disable")),
        *((word, None) for word in ("", "maybe", "2", "y", "tru")),
    ],
)
def test_booleans(text: str, value: bool | None) -> None:
    assert boolean(text) is value


@given(st.text(max_size=30))
def test_no_text_makes_a_parser_raise(text: str) -> None:
    size = byte_size(text)
    assert size is None or 0 <= size <= UINT64_MAX
    digits = leading_digits(text)
    assert digits is None or 0 < digits <= UINT64_MAX
    assert boolean(text) in (True, False, None)


NAMES = (
    "MC_STORE_USE_HUGEPAGE",
    "MC_STORE_HUGEPAGE_SIZE",
    "MC_MMAP_ARENA_POOL_SIZE",
    "MC_DISABLE_MMAP_ARENA",
    "MC_STORE_LOCAL_HOT_CACHE_SIZE",
    "MC_STORE_LOCAL_HOT_BLOCK_SIZE",
    "MC_STORE_LOCAL_HOT_CACHE_USE_SHM",
)


@given(st.dictionaries(st.sampled_from(NAMES), st.text(max_size=12)), st.sampled_from([0, 1, 14]))
def test_no_environment_makes_the_reader_raise(environment: dict[str, str], patch: int) -> None:
    settings, _ = read_store_settings(environment, mooncake_release(f"0.3.{patch}"))
    assert settings.hugepages is ("MC_STORE_USE_HUGEPAGE" in environment)


@pytest.mark.parametrize(
    ("environment", "id_", "says"),
    [
        ({"MC_STORE_USE_HUGEPAGE": "0"}, "hugepage-switch-is-presence", "turns huge pages on"),
        ({"MC_STORE_USE_HUGEPAGE": ""}, "hugepage-switch-is-presence", "turns huge pages on"),
        ({"MC_STORE_HUGEPAGE_SIZE": "2MiB"}, "hugepage-size-ignored", "maps 2 MiB pages"),
        ({"MC_STORE_HUGEPAGE_SIZE": "512MB"}, "hugepage-size-ignored", "2MB, 1024MB"),
        ({"MC_MMAP_ARENA_POOL_SIZE": "0"}, "arena-size-unreadable", "an arena of 8 GiB"),
        ({"MC_MMAP_ARENA_POOL_SIZE": "56GiB"}, "arena-size-unreadable", "an arena of 8 GiB"),
        ({"MC_MMAP_ARENA_POOL_SIZE": "56"}, "arena-size-small", "write 56gb"),
        ({"MC_DISABLE_MMAP_ARENA": "maybe"}, "arena-disable-ignored", "the arena stays on"),
        ({"MC_STORE_LOCAL_HOT_CACHE_SIZE": "4GB"}, "hot-cache-size-misread", "as 4 bytes"),
        ({"MC_STORE_LOCAL_HOT_CACHE_SIZE": "many"}, "hot-cache-size-misread", "no cache"),
        (
            {"MC_STORE_LOCAL_HOT_CACHE_SIZE": "85983232", "MC_STORE_LOCAL_HOT_BLOCK_SIZE": "1MB"},
            "hot-cache-size-misread",
            "as 1 bytes",
        ),
    ],
)
def test_what_is_misread_is_said(environment: dict[str, str], id_: str, says: str) -> None:
    _, notes = read_store_settings(environment, mooncake_release("0.3.13.post1"))
    assert [note.id for note in notes] == [id_]
    assert says in notes[0].text


@each_row(
    ("version", "hugepages", "arena", "in_store_pages", "numa"),
    [
        ("0.3.7.post2", False, False, False, NumaSegments.NONE),
        ("0.3.8", False, False, False, NumaSegments.NONE),
        ("0.3.8.post1", True, False, False, NumaSegments.NONE),
        ("0.3.10.post1", True, False, False, NumaSegments.NONE),
        ("0.3.10.post2", True, False, False, NumaSegments.REGULAR),
        ("0.3.11.post1", True, True, False, NumaSegments.REGULAR),
        ("0.3.12", True, True, False, NumaSegments.HUGETLB),
        ("0.3.13.post1", True, True, False, NumaSegments.HUGETLB),
        ("0.3.14", True, True, True, NumaSegments.HUGETLB),
        ("0.4.0", True, True, True, NumaSegments.HUGETLB),
    ],
)
def test_releases(
    version: str, hugepages: bool, arena: bool, in_store_pages: bool, numa: NumaSegments
) -> None:
    row = mooncake_release(version)
    found = (row.hugepages, row.arena, row.arena_in_store_pages, row.numa_segments)
    assert found == (hugepages, arena, in_store_pages, numa)
