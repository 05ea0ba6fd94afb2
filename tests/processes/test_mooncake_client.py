"""mooncake_client: SSD offload as each release has it, its switches, and the arena of its flags."""

from __future__ import annotations

import pytest

from checks.framework.units import GIB, MIB
from checks.framework.unknown import Unknown
from checks.releases.mooncake import mooncake_release
from preflight.engines.mooncake.allocations import EndlessPools
from preflight.engines.mooncake.replay import ADDRESS_SPACE_BYTES, replay
from preflight.engines.programs.memory_records import (
    Launch,
    MappedProcess,
    Protocol,
    StoreClient,
    StoreSettings,
)
from preflight.engines.programs.store_environment import read_store_settings
from preflight.engines.programs.store_processes import (
    OFFLOAD_BUFFER_BYTES,
    offload_buffer_bytes,
    read_mooncake_client,
)
from preflight.launches.source import Origin, Word

SETTINGS = StoreSettings(hugepages=True, hugepage_bytes=2 * MIB)


def word(text: str, unresolved: tuple[str, ...] = ()) -> Word:
    return Word(text, Origin("launch.sh", 1), unresolved)


@pytest.mark.parametrize(
    ("text", "before", "since"),
    [
        ("104857600", 104857600, 104857600),
        ("20GB", 20, OFFLOAD_BUFFER_BYTES),
        ("0x100000", 0, OFFLOAD_BUFFER_BYTES),
        ("-1048576", -1048576, -1048576),
        ("+7", 7, 7),
        ("abc", OFFLOAD_BUFFER_BYTES, OFFLOAD_BUFFER_BYTES),
        ("9223372036854775808", OFFLOAD_BUFFER_BYTES, OFFLOAD_BUFFER_BYTES),
    ],
)
def test_the_buffer_as_each_release_reads_it(text: str, before: int, since: int) -> None:
    """Leading digits up to 0.3.12, the whole text since; both were seen by running them."""
    environment = {"MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES": word(text)}
    assert offload_buffer_bytes(environment, mooncake_release("0.3.12.post1")) == before
    assert offload_buffer_bytes(environment, mooncake_release("0.3.13")) == since


def failure(version: str, *clients: StoreClient) -> str:
    launch = Launch((MappedProcess("process", SETTINGS, (), clients),), mooncake_release(version))
    (process,) = replay(launch, EndlessPools())
    return process.failure.error if process.failure else ""


@pytest.mark.parametrize("size", [0, -1048576, ADDRESS_SPACE_BYTES])
def test_a_buffer_that_cannot_be_had_ends_the_process(size: int) -> None:
    client = StoreClient(80 * MIB, 16 * MIB, Protocol.TCP, size)
    assert failure("0.3.13.post1", client).startswith("SIGSEGV")


@pytest.mark.parametrize(
    ("arguments", "offloads", "refused"),
    [
        (("--enable_offload",), True, ""),
        (("--enable_offload", "false"), True, ""),
        (("--noenable_offload",), False, ""),
        (("-enable_offload=T",), True, ""),
        (("--enable_offload=on",), False, "illegal value 'on'"),
        (("--protocol=TCP",), False, "unsupported_protocol"),
    ],
)
def test_switches_of_mooncake_client(
    arguments: tuple[str, ...], offloads: bool, refused: str
) -> None:
    """As gflags reads them: a word behind a switch is not its value, and eight words are known."""
    process = read_mooncake_client(tuple(word(text) for text in arguments), {})
    assert process.offload is offloads
    assert refused in " ".join(process.refused)
    assert bool(process.refused) is bool(refused)


ON, SIZE = "--use_mmap_arena_allocator", "--mmap_arena_pool_size=34603008"


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


def test_a_switch_that_a_variable_decides_is_unknown() -> None:
    offload = word("--enable_offload=$ON", ("ON",))
    assert isinstance(read_mooncake_client((offload,), {}).offload, Unknown)
    assert read_mooncake_client((), {}).offload is False


def test_a_size_that_a_variable_decides_is_unknown() -> None:
    flags = (word(ON), word("--mmap_arena_pool_size=$SIZE", ("SIZE",)))
    assert isinstance(read_mooncake_client(flags, {}).client, Unknown)
