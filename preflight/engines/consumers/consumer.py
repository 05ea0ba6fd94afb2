"""What one program takes through Mooncake and beside it, as every consumer's reader gives it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

from checks.framework.pages import Default
from checks.framework.units import GIB, TIB
from checks.framework.unknown import Unknown, or_unknown, require
from checks.framework.written_numbers import version_numbers
from preflight.engines.programs.memory_records import OwnPool, Protocol, StoreClient
from preflight.engines.programs.sglang_arguments import SettingValue, port_value, word_value
from preflight.engines.programs.store_processes import StoreProcess
from preflight.engines.programs.store_service_config import LEAST_SIZE_BYTES, PROTOCOLS
from preflight.launches.source import Word

_Read = TypeVar("_Read")
# A pool holds whole chunks, whose size the model decides. No chunk is larger: 256 tokens of the
# largest KV cache of a token that is known (GPT-3's shape, 4.5 MiB) come to 1.2 GB.
MOST_CHUNK_BYTES = 2 * GIB
STORE_PATH = "MOONCAKE_CONFIG_PATH"


class WorkerPool(NamedTuple):
    """Host memory that a consumer takes itself.

    Attributes:
        of_engine: One pool for all workers of an engine, counted in the first; otherwise each
            worker has one.
        first_if_mla: With an MLA model, only the first has one, at most of that size.
    """

    memory: OwnPool
    of_engine: bool = False
    first_if_mla: bool = False

    def bytes_of(self, first: bool, mla: bool, most: bool) -> int:
        """Return the bytes of this pool that one worker may have: the ``most``, or else the least.

        Args:
            first: The worker is the first of its engine.
            mla: The model has MLA.
        """
        latent = mla and self.first_if_mla
        if not first and (self.of_engine or latent):
            return 0
        least = 0 if latent else self.memory.least_bytes
        return self.memory.bytes if most else least


class Client(NamedTuple):
    """A store client of every worker; ``first_if_mla`` as of ``WorkerPool``.

    Attributes:
        family: The program whose keys the client writes.
        keys: Settings that these keys depend on, beside the engine's.
    """

    store: StoreProcess
    first_if_mla: bool = False
    family: str = ""
    keys: Mapping[str, Any] = {}


class NamedRelease(NamedTuple):
    """The release of a program that a launch names, and what names it: its image, or pip."""

    release: str
    by: str


class RefusedBy(NamedTuple):
    """An error with which ``release`` ends; another release may take the same words.

    Attributes:
        says: The error.
        since: The first of the releases read that ends so too, or "".
        every: All that were read end so.
        taken_by: The last that takes the words, or "".
        uncounted: The memory that is in no number if the release that runs takes the words.
    """

    release: str
    says: str
    since: str = ""
    every: bool = False
    taken_by: str = ""
    uncounted: str = ""


class Consumer(NamedTuple):
    """One process of a launch: its workers on this host, and the memory of each worker.

    Its program.

    Its place.

    Its needs.

    Its faults.

    Attributes:
        release: The release as which it was read; parts: other libraries inside it; named: releases
            that the launch names, by product.
        connectors: By vLLM's names.
        settings: The values that all of this follows from.
        engines: Its data-parallel engines on this host, each of ``workers`` processes with a GPU.
        hosts: The number of hosts of one engine; node: the number of this host among them, None for
            one host or if nothing says so; leader: the first host's address, or "".
        executor: What starts workers.
        clients, pools: Of each worker.
        transfer: The RDMA devices of a transfer engine beside them, or None; transfer_protocol: its
            protocol, or "".
        registers_gpu: The GPU memory that it registers, in words, or "".
        gpu_fraction: The share of each worker's GPU that has to be free; gpu_fills: it takes all of
            that.
        ports: By name.
        sockets: Files that it makes anew.
        refused: Its errors in every release; refused_by: in some.
        misread, ignored: Words that are taken for something else, or not at all.
        uncounted: Memory that is in no number.
        may_use: Why it may use Mooncake although nothing that was read does; None if it does not.
    """

    release: str
    engines: int | Unknown = 1
    workers: int | Unknown = 1
    settings: Mapping[str, SettingValue] = {}
    clients: tuple[Client, ...] = ()
    transfer: SettingValue | None = None
    transfer_protocol: str = ""
    pools: tuple[WorkerPool, ...] = ()
    registers_gpu: str = ""
    ports: tuple[tuple[str, SettingValue], ...] = ()
    refused: tuple[str, ...] = ()
    refused_by: tuple[RefusedBy, ...] = ()
    misread: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    uncounted: tuple[str, ...] = ()
    may_use: Unknown | None = None
    hosts: int = 1
    node: int | None = None
    leader: str = ""
    named: Mapping[str, NamedRelease] = {}
    parts: tuple[str, ...] = ()
    sockets: tuple[str, ...] = ()
    gpu_fraction: float | None = None
    gpu_fills: bool = False
    executor: str = ""
    connectors: tuple[str, ...] = ()

    def doubt_of(self, refusal: RefusedBy) -> str | None:
        """Return why an error may not apply to the release that runs; "" if it surely applies, None
        if it surely does not.
        """
        release = refusal.release
        product, _, read = release.partition(" ")
        named = self.named.get(product.lower())
        if named is None:
            # As for SGLang: what every release that is known refuses fails.
            return "" if refusal.every else f"{release} is assumed, as nothing names its release"
        if named.release == read or _within(refusal.since, named.release, read):
            return ""
        if _within("0.0.0", named.release, refusal.taken_by):
            return None
        return f"{release} is assumed, and {named.by} has {named.release}"

    def other_releases(self) -> Iterator[tuple[str, str]]:
        """Yield (release that the launch names, release that was read) if these differ."""
        for release in (self.release, *self.parts):
            product, _, read = release.partition(" ")
            named = self.named.get(product.lower())
            if named is not None and named.release != read:
                yield f"{named.release} by {named.by}", release

    @property
    def model(self) -> Any:
        """The model as it is named, None if it is not."""
        return self.settings["model"].value if "model" in self.settings else None

    @property
    @or_unknown
    def ranks(self) -> int | Unknown:
        """Its worker processes on this host."""
        return require(self.engines) * require(self.workers)

    def is_first(self, rank: int) -> bool:
        """Tell whether a worker here is the first of its engine."""
        return rank % require(self.workers) == 0

    def pools_of(self, rank: int, mla: bool | Unknown, most: bool) -> tuple[OwnPool, ...]:
        """Return a worker's pools with the ``most`` or the least bytes, without pools of 0 bytes.

        If ``mla`` is not known, the bytes are the most or the least of both cases.
        """
        kinds = (False, True) if isinstance(mla, Unknown) else (mla,)
        first, bound = self.is_first(rank), max if most else min
        sizes = [bound(p.bytes_of(first, each, most) for each in kinds) for p in self.pools]
        pairs = zip(self.pools, sizes, strict=True)
        return tuple(p.memory._replace(bytes=size) for p, size in pairs if size)

    def stores_of(self, rank: int, mla: bool) -> tuple[StoreProcess, ...]:
        """Return the store clients of one worker."""
        first = self.is_first(rank)
        return tuple(c.store for c in self.clients if first or not (mla and c.first_if_mla))


def _within(first: str, release: str, last: str) -> bool:
    """Tell whether a release lies from ``first`` to ``last``; False if one is no number."""
    try:
        low, number, high = (version_numbers(text, "a", "") for text in (first, release, last))
    except ValueError:
        return False
    return low <= number <= high


class ConsumerParts:
    """What a reader finds of one consumer, list by list, until all of it is read."""

    def __init__(self) -> None:
        """Begin with empty lists."""
        self.settings: dict[str, SettingValue] = {}
        self.clients: list[Client] = []
        self.pools: list[WorkerPool] = []
        self.ports: list[tuple[str, SettingValue]] = []
        self.refused_by: list[RefusedBy] = []
        self.may_use: Unknown | None = None
        self.refused, self.misread, self.ignored = list[str](), list[str](), list[str]()
        self.uncounted, self.parts = list[str](), list[str]()
        self.sockets, self.connectors = list[str](), list[str]()

    def add(self, part: Consumer) -> None:
        """Add a part that another reader understood.

        A ``may_use`` of an earlier part stays.
        """
        self.settings |= part.settings
        self.parts += [part.release] if part.release else []
        self.may_use = part.may_use if self.may_use is None else self.may_use
        for name in _LISTS:
            getattr(self, name).extend(getattr(part, name))

    def consumer(self, release: str = "", **more: Any) -> Consumer:
        """Return the collected parts as a Consumer of ``release``, with ``more`` of its fields."""
        lists: dict[str, Any] = {name: tuple(getattr(self, name)) for name in _LISTS}
        return Consumer(release, settings=self.settings, may_use=self.may_use, **lists, **more)

    @property
    def rdma(self) -> bool:
        """Whether one of its clients registers with NICs."""
        clients = [each.store.client for each in self.clients]
        rdma = Protocol.RDMA
        return any(isinstance(each, StoreClient) and each.protocol is rdma for each in clients)


_LISTS = (
    "clients pools ports refused refused_by misread ignored uncounted parts sockets connectors"
).split()


def port_of(word: Word | None, default: int, name: str, whose: str) -> SettingValue:
    """Return the port that ``word``, the value of flag or variable ``name``, gives; ``default``,
    the port of program ``whose``, if ``word`` is None.
    """
    if word is None:
        return SettingValue(default, Default(f"default of {whose}"))
    value = word_value(word)
    port = value if isinstance(value, Unknown) else port_value(value, name)
    return SettingValue(port, f"{name} at {word.origin}", written_as=name)


def flags_of(arguments: Sequence[Word]) -> dict[str, list[Word]]:
    """Return the values of each flag, in order, by its name without the leading dashes.

    Flags are written ``--a b`` or ``--a=b``; a switch has the value "". _ in a name becomes -.
    """
    flags: dict[str, list[Word]] = {}
    left = list(arguments)
    while left:
        word = left.pop(0)
        name, equals, text = word.text.partition("=")
        if not name.startswith("-"):
            continue
        value = word._replace(text=text)
        if not equals and left and not left[0].text.startswith("-"):
            value = left.pop(0)
        flags.setdefault(name.lstrip("-").replace("_", "-"), []).append(value)
    return flags


def setup_refuses(segment: int, local: int, protocol: str) -> str:
    """Return why setup() of Mooncake 0.3.13.post1 refuses the sizes (bytes) or protocol, or ""."""
    if segment < 0 or local < 0:
        return "TypeError: setup(): incompatible function arguments"
    for name, size in (("global_segment_size", segment), ("local_buffer_size", local)):
        if 0 < size < LEAST_SIZE_BYTES:
            return f"{name} is {int(size)} bytes, less than {LEAST_SIZE_BYTES}: setup returns -600"
    if local > TIB:
        return f"local_buffer_size is {local} bytes, more than 1 TiB: setup returns -600"
    if protocol not in PROTOCOLS:
        return f"protocol {protocol!r} is not one that Mooncake has: setup fails"
    return ""


def chunked_pool(size: int) -> OwnPool:
    """Return a pool of whole chunks: the last one may be missing."""
    return OwnPool(size, max(size - MOST_CHUNK_BYTES, size // 2 + 1))


def attempt(read: Callable[[], _Read]) -> _Read | str:
    """Call ``read`` and return its value, or the error that a wrong value raises, in words:
    ``ValueError: …``.

    Other errors, such as OSError, are raised.
    """
    try:
        return read()
    except (
        ValueError,
        TypeError,
        AttributeError,
        OverflowError,
        KeyError,
        RecursionError,
    ) as error:
        return f"{type(error).__name__}: {error}"
