"""The arena that mooncake_client is told of by flags: before it, a false pass."""

from __future__ import annotations

import pytest

from checks.base.units import GIB, MIB
from checks.base.unknown import Unknown
from checks.releases.mooncake import mooncake_release
from preflight.launches.source import Origin, Word
from preflight.programs.store_environment import read_store_settings
from preflight.programs.store_processes import read_mooncake_client

ON, SIZE = "--use_mmap_arena_allocator", "--mmap_arena_pool_size=34603008"


def word(text: str, unresolved: tuple[str, ...] = ()) -> Word:
    return Word(text, Origin("launch.sh", 1), unresolved)


@pytest.mark.parametrize(
    ("flags", "variable", "arena_bytes"),
    [
        # Each was seen on mooncake_client 0.3.13.post1 and 0.3.14: tests/real has the pages.
        ((ON, SIZE), None, 33 * MIB),
        ((ON,), None, 8 * GIB),
        ((SIZE,), None, None),
        ((SIZE,), "abc", 33 * MIB),
        ((SIZE,), "0", 33 * MIB),
        ((ON, SIZE), "", 33 * MIB),
        ((ON, SIZE), "80mb", 80 * MIB),
        (("-mmap_arena_pool_size", "0x2100000", "--use-mmap-arena-allocator", "1"), None, 33 * MIB),
        ((ON, SIZE, "--nouse_mmap_arena_allocator"), None, None),
        ((), "abc", 8 * GIB),
    ],
)
def test_flags_and_variable(
    flags: tuple[str, ...], variable: str | None, arena_bytes: int | None
) -> None:
    process = read_mooncake_client(tuple(map(word, flags)), {})
    environment = {} if variable is None else {"MC_MMAP_ARENA_POOL_SIZE": variable}
    release = mooncake_release("0.3.13.post1")
    settings, _ = read_store_settings(environment, release, process.arena)
    assert settings.arena_bytes == arena_bytes


def test_a_size_that_a_variable_decides_is_unknown() -> None:
    flags = (word(ON), word("--mmap_arena_pool_size=$SIZE", ("SIZE",)))
    assert isinstance(read_mooncake_client(flags, {}).client, Unknown)
