"""What one program takes through Mooncake and beside it, as every consumer's reader gives it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from checks.base.units import TIB
from checks.base.unknown import Unknown, UnknownFactError
from preflight.programs.memory_records import OwnPool
from preflight.programs.sglang_arguments import Setting
from preflight.programs.store_processes import StoreProcess
from preflight.programs.store_service_config import LEAST_SIZE_BYTES, PROTOCOLS

_Read = TypeVar("_Read")


class Pool(NamedTuple):
    """Host memory that a consumer takes itself.

    of_engine: one for all workers of an engine, in its first; otherwise one in each worker.
    """

    memory: OwnPool
    of_engine: bool = False


class Consumer(NamedTuple):
    """One process of a launch: its workers on this host, and what each of them takes.

    engines: its data-parallel engines here, each of ``workers`` processes with a GPU.
    stores: the store clients that every worker sets up. transfer: the devices of a transfer engine
    beside them; None without one. registers_gpu: what of the GPU's memory it registers, "" for
    nothing. settings: what all this follows from. ports: what it listens on, by what it is.
    refused: its own errors: it will not start. misread, ignored: what was written and is taken for
    something else, or not at all. uncounted: what of it is in no number. hosts: over how many hosts
    one engine runs.
    """

    release: str
    engines: int | Unknown = 1
    workers: int | Unknown = 1
    settings: Mapping[str, Setting] = {}
    stores: tuple[StoreProcess, ...] = ()
    transfer: Setting | None = None
    pools: tuple[Pool, ...] = ()
    registers_gpu: str = ""
    ports: tuple[tuple[str, Setting], ...] = ()
    refused: tuple[str, ...] = ()
    misread: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    uncounted: tuple[str, ...] = ()
    hosts: int = 1

    @property
    def ranks(self) -> int | Unknown:
        """Its worker processes on this host."""
        if isinstance(self.engines, Unknown):
            return self.engines
        return self.workers if isinstance(self.workers, Unknown) else self.engines * self.workers

    def pools_of(self, rank: int) -> tuple[OwnPool, ...]:
        """Return the pools of one worker. Raises UnknownFactError where their number is unknown."""
        if isinstance(self.workers, Unknown):
            raise UnknownFactError(self.workers)
        first = rank % self.workers == 0
        return tuple(pool.memory for pool in self.pools if first or not pool.of_engine)


def setup_refuses(segment: int, local: int, protocol: str) -> str:
    """Return why Mooncake's setup answers these values with an error; "" where it takes them.

    Seen on Mooncake 0.3.13.post1; sizes in bytes.
    """
    if segment < 0 or local < 0:
        return "TypeError: setup(): incompatible function arguments"
    for name, size in (("global_segment_size", segment), ("local_buffer_size", local)):
        if 0 < size < LEAST_SIZE_BYTES:
            return f"{name} is {size} bytes, less than {LEAST_SIZE_BYTES}: setup returns -600"
    if local > TIB:
        return f"local_buffer_size is {local} bytes, more than 1 TiB: setup returns -600"
    if protocol not in PROTOCOLS:
        return f"protocol {protocol!r} is none that Mooncake has: setup fails"
    return ""


def attempt(read: Callable[[], _Read]) -> _Read | str:
    """Return what ``read`` does, or the words with which it raises: ``ValueError: …``."""
    try:
        return read()
    except (ValueError, TypeError, AttributeError, OverflowError, KeyError) as error:
        return f"{type(error).__name__}: {error}"


def json_object(value: Any) -> dict[str, Any]:
    """``value`` as an object. Raises AttributeError as Python does where it is none."""
    if not isinstance(value, dict):
        raise AttributeError(f"{type(value).__name__!r} object has no attribute 'get'")
    return value
