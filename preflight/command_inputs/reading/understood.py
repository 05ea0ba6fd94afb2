"""A launch as it was understood, from the very records that ``check`` judges."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from checks.framework.regex import regex
from checks.framework.units import format_bytes
from checks.framework.unknown import Unknown
from checks.host_snapshot.secrets import REMOVED, clean_text, clean_words, is_secret
from preflight.base.usage_error import NoLaunchError
from preflight.command_inputs.host_source import Host, launch_of
from preflight.command_inputs.launch_words import LaunchWords
from preflight.engines.consumers.consumer import Consumer
from preflight.engines.programs.mooncake_flags import flags_of, read_flags
from preflight.engines.programs.sglang_arguments import SettingValue
from preflight.engines.sglang.server import SglangServer
from preflight.launches.launchers import enters_container, remote_words
from preflight.launches.source import Origin, Reading, SourceNote, Word, open_names, why_open
from preflight.launches.variables import matching
from preflight.needs.launch_sizing import LaunchSizing
from preflight.needs.sizing_inputs import Input
from preflight.processes.host_groups import HostGroup, host_groups
from preflight.processes.mooncake_users import place, uses_mooncake
from preflight.processes.ports import ports
from preflight.processes.processes import (
    GFLAGS_PROGRAMS,
    LaunchProcess,
    ProcessKind,
    understand,
    with_router,
)
from preflight.processes.unread import NotRead, count_of, not_set, routed_servers, unread


class Value(NamedTuple):
    """A setting as its program will understand it, and where it was written."""

    value: Any
    origin: str


class ProcessReading(NamedTuple):
    """One process of a launch.

    Attributes:
        program: Its name in JSON.
        title: Its name for a person.
        number: How many are started, Unknown if that is not seen.
        group: The host, pod or container that the process runs in, in words.
        settings: Those that were written (``written`` names them), and those that follow from
            these, such as ports.
        defaults: The settings that nobody wrote.
        environment: The variables that the program reads.
        model_config: The origin of the model's config.json, None if it was not read.
    """

    program: str
    title: str
    number: int | Unknown
    group: str
    origin: Origin
    argv: tuple[str, ...]
    settings: Mapping[str, Value]
    written: frozenset[str]
    defaults: Mapping[str, Value]
    environment: Mapping[str, Value]
    image: str | None
    release: Mapping[str, Value]
    model: Value | None
    model_config: str | None


class LaunchReading(NamedTuple):
    """A launch as it was understood.

    Attributes:
        sentence: All processes in brief.
        unread: What was not read, and may matter.
    """

    name: str
    sentence: str
    processes: tuple[ProcessReading, ...]
    unread: tuple[NotRead, ...]
    notes: tuple[SourceNote, ...]


PROGRAMS = {
    ProcessKind.SGLANG: "sglang",
    ProcessKind.STORE_SERVICE: "store_service",
    ProcessKind.CLIENT: "mooncake_client",
    ProcessKind.MASTER: "mooncake_master",
    ProcessKind.METADATA: "metadata_server",
    ProcessKind.ROUTER: "sglang_router",
    ProcessKind.VLLM: "vllm",
    ProcessKind.DYNAMO_SGLANG: "dynamo.sglang",
    ProcessKind.DYNAMO_VLLM: "dynamo.vllm",
    ProcessKind.LMCACHE: "lmcache",
    ProcessKind.ENGINE: "engine",
    ProcessKind.ETCD: "etcd",
    ProcessKind.REDIS: "redis",
    ProcessKind.NATS: "nats",
    ProcessKind.BENCHMARK: "other",
    ProcessKind.OTHER: "other",
}
# Variables that a program of these reads.
_READ = regex(
    r"(MC|MOONCAKE|SGLANG|SGL|VLLM|LMCACHE|NCCL|CUDA|NVIDIA|UCX|GLOO|RDMAV|IBV|DYN)_"
    r"|(PYTHONHASHSEED|LD_PRELOAD|WITH_NVIDIA_PEERMEM)$"
)


def read_whole(launch_words: LaunchWords, host: Host) -> LaunchReading:
    """Read and understand a launch.

    Raises:
        UsageError: If it is no launch, or cannot be read.
    """
    from preflight.command_inputs.written_launch import size_written

    written = launch_of(launch_words, host)
    if written is None:
        raise NoLaunchError("give a launch: a script, a manifest, or a command after --")
    launch, options = written
    try:
        return reading_of(size_written(launch, options, host.root), launch.name)
    except NoLaunchError:
        processes = understand(launch.reading.commands, launch.read_file)
        return _launch_reading(launch.name, launch.reading, processes, {})


def reading_of(sizing: LaunchSizing, name: str) -> LaunchReading:
    """Return a sized launch as it was understood."""
    shown = {} if sizing.shown is None else dict(sizing.shown.inputs.shown)
    return _launch_reading(name, sizing.reading, sizing.whole, shown)


def _launch_reading(
    name: str, reading: Reading, processes: Sequence[LaunchProcess], shown: Mapping[str, Input]
) -> LaunchReading:
    """Return the reading of a launch, in the launch's order.

    Args:
        shown: Inputs of the sizing by name; {} for a launch that was not sized.
    """
    groups = host_groups(processes)
    group_of = {number: group for group in groups for number in group.only_here}
    return LaunchReading(
        name,
        sentence(processes),
        tuple(
            _reading(process, shown, _locate(process, group_of.get(process.number), groups))
            for process in processes
        ),
        (*unread(reading, processes), *_files_not_read(processes), *not_set(processes)),
        tuple(note for note in reading.notes if note.id != "condition"),
    )


def _files_not_read(processes: Sequence[LaunchProcess]) -> Iterator[NotRead]:
    """Yield the server arguments, store settings and store clients that were not read."""
    for process in processes:
        server = process.server
        facts: list[object] = [store.client for store in process.stores]
        if server is not None:
            facts = [server.arguments.unread, server.store.source if server.store else None]
        for each in facts:
            if isinstance(each, Unknown):
                yield NotRead(process.kind.value, each.reason, process.command.origin)


def _reading(process: LaunchProcess, shown: Mapping[str, Input], group: str) -> ProcessReading:
    """Return one process as it was understood.

    Args:
        shown: Inputs of the sizing by name.
        group: The place that it runs in, in words.
    """
    command = process.command
    settings = dict(_written_settings(process))
    environment = sorted(matching(command.environment, _READ))
    image = command.container.image if command.container is not None else None
    named = {} if process.consumer is None else process.consumer.named
    release = {
        product: Value(product_release.release, f"{product_release.by} at {command.origin}")
        for product, product_release in named.items()
    }
    ours = ("sglang", "mooncake")[process.server is None :] if process.kind in _OURS else ()
    for product in ours:
        if (version := shown.get(f"{product}_version")) is not None:
            release[product] = Value(version.value, version.origin)
    server = process.server
    written = {} if server is None else server.arguments.settings
    path = written.get("model_path")
    why = None if server is None else shown.get(f"L2 of a rank, {command.origin}")
    return ProcessReading(
        PROGRAMS[process.kind],
        process.kind.value,
        count_of(process),
        group,
        command.origin,
        tuple(clean_words(word.text for word in command.words)),
        {**settings, **dict(_derived_settings(process))},
        frozenset(settings),
        _Defaults(written),
        {name: _value(name, word) for name, word in environment},
        image or None,
        release,
        None if path is None else Value(path.value, path.origin),
        None if why is None else why.origin,
    )


_STORES = (ProcessKind.STORE_SERVICE, ProcessKind.CLIENT, ProcessKind.MASTER, ProcessKind.METADATA)
_OURS = (ProcessKind.SGLANG, ProcessKind.DYNAMO_SGLANG, *_STORES)


def _value(name: str, word: Word) -> Value:
    if is_secret(name):
        return Value(REMOVED, str(word.origin))
    if word.unresolved:
        return Value(Unknown(why_open(word, open_names(word))), str(word.origin))
    return Value(clean_text(word.text), str(word.origin))


def _locate(process: LaunchProcess, group: HostGroup | None, groups: Sequence[HostGroup]) -> str:
    """Name the place that a process runs in.

    Args:
        group: Its host group of ``groups``, the launch's; None if it may run on each of several
            hosts, or the launch has no groups.
    """
    group = groups[0] if len(groups) == 1 else group
    host = "any of the hosts" if groups else "this host"
    if group is not None:
        host = f"{group.what} (group {group.name})"
    if place(process) == ():
        return host
    where = process.command.place
    if where is not None and where.kind == "job":
        job, role = where.name
        return f"{role} nodes of job {job}"
    if where is not None:
        return " ".join((where.kind, *filter(None, (*where.name, where.container))))
    for wrapper in process.command.wrappers:
        remote = remote_words(wrapper)
        if remote is not None:
            return f"behind {wrapper[0]} {remote.hosts or wrapper[-1]}"
        if process.command.container is not None and len(wrapper) > 1 and wrapper[1] == "run":
            return f"container of {wrapper[-1]}"
        if wrapper[0].rpartition("/")[2] in ("kubectl", "oc") and "exec" in wrapper:
            return f"behind {' '.join(wrapper).removesuffix(' --')}"
        if wrapper[1:2] == ("exec",) and enters_container(wrapper):
            return f"container {wrapper[-1]}"
    return host


def _written_settings(process: LaunchProcess) -> Iterator[tuple[str, Value]]:
    """Yield (name, value) of the settings that somebody wrote; of an SGLang server's store, every
    setting with ``store.`` in front.
    """
    server = process.server
    if server is not None:
        for name, setting in server.arguments.written.items():
            yield name, _clean_value(name, setting.value, setting.origin)
        if server.store is not None:
            for name, setting in server.store.settings.items():
                yield f"store.{name}", _clean_value(name, setting.value, setting.origin)
        return
    program = GFLAGS_PROGRAMS.get(process.kind)
    if program is not None:
        for each in read_flags(process.arguments, flags_of(program)):
            value = Unknown("a variable that nothing sets") if each.value is None else each.value
            yield each.name, _clean_value(each.name, value, str(each.word.origin))
        return
    argv = process.arguments
    if process.kind is ProcessKind.VLLM and len(argv) > 1 and argv[1].text[:1] != "-":
        yield "model", _value("model", argv[1])
    yield from _flags(process.command.words[0].text, argv)


def _derived_settings(process: LaunchProcess) -> Iterator[tuple[str, Value]]:
    """Yield (name, value) of what follows from the written settings: a store client's memory,
    transport and addresses, and the ports that are bound and published.
    """
    store = process.store
    if store is not None and not isinstance(store.client, Unknown):
        client = store.client
        names = "segment_bytes", "local_buffer_bytes", "protocol", "master", "metadata"
        sizes = client.segment_bytes, client.local_buffer_bytes, client.protocol.value
        for name, value in zip(names, (*sizes, store.master, store.metadata), strict=True):
            yield name, Value(value, str(process.command.origin))
    for port in ports(process):
        yield port.what, Value(port.port, port.origin)
    engine = process.command.published
    if engine:
        known = [str(port.port) for port in engine if isinstance(port.port, int)]
        value = engine[0].port if len(engine) == 1 else ", ".join(dict.fromkeys(known))
        yield engine[0].what, Value(value, engine[0].origin)


class _Defaults(Mapping[str, Value]):
    """The hundreds of settings of a server that nobody wrote.

    Each is made when it is asked for.
    """

    def __init__(self, settings: Mapping[str, SettingValue]) -> None:
        self._settings = settings

    def __getitem__(self, name: str) -> Value:
        setting = self._settings[name]
        if setting.given:
            raise KeyError(name)
        return _clean_value(name, setting.value, setting.origin)

    def __iter__(self) -> Iterator[str]:
        return (name for name, setting in self._settings.items() if not setting.given)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _clean_value(name: str, value: object, origin: str) -> Value:
    if isinstance(value, Unknown):
        return Value(value, origin)
    if value and is_secret(name):
        return Value(REMOVED, origin)
    return Value(clean_text(value) if isinstance(value, str) else value, origin)


def _flags(program: str, argv: Sequence[Word]) -> Iterator[tuple[str, Value]]:
    """Yield (name, value) of each flag of a program whose flags are not listed here: ``--name
    value``, ``--name=value``, or a switch, whose value is True.

    Secrets are removed.
    """
    shown = clean_words([program, *(word.text for word in argv)])[1:]
    left = deque(word._replace(text=text) for word, text in zip(argv, shown, strict=True))
    while left:
        word = left.popleft()
        if not word.text.startswith("--"):
            continue
        name, equals, text = word.text[2:].partition("=")
        value = word._replace(text=text)
        if not equals and left and not left[0].text.startswith("--"):
            value = left.popleft()
        elif not equals:
            yield name.replace("-", "_"), Value(True, str(word.origin))
            continue
        yield name.replace("-", "_"), _value(name, value)


def about(source: str, processes: Sequence[LaunchProcess]) -> tuple[str, str] | None:
    """Return a launch's name and a sentence about it; None without a launch."""
    return (source, sentence(processes)) if source or processes else None


def sentence(processes: Sequence[LaunchProcess]) -> str:
    """Say in one sentence what was understood: ``2 SGLang servers (Qwen3-14B, tp 2), 1 master``."""
    counted: dict[tuple[ProcessKind, str], int] = {}
    uncounted: set[tuple[ProcessKind, str]] = set()
    for process in processes:
        if process.kind not in (ProcessKind.OTHER, ProcessKind.BENCHMARK):
            key = (process.kind, _brief(process))
            number = count_of(process)
            if isinstance(number, Unknown):
                uncounted.add(key)
                number = 0
            counted[key] = counted.get(key, 0) + number
            if process.server is not None and with_router(process.command):
                router = (ProcessKind.ROUTER, "")
                counted[router] = counted.get(router, 0) + process.command.copies
    parts = []
    for (of, text), number in counted.items():
        more = (of, text) in uncounted
        single = (number == 1 and not more) or of in _NO_PLURAL
        count = f"{number or '?'}{' or more' * bool(number)}" if more else number
        parts.append(f"{count} {of.value}{'' if single else 's'}{f' ({text})' if text else ''}")
    return ", ".join(parts) or "no program that is known here"


_NO_PLURAL = (ProcessKind.ETCD, ProcessKind.REDIS, ProcessKind.NATS)


def uses_no_hicache_or_mooncake(processes: Sequence[LaunchProcess]) -> bool:
    """Tell whether a launch starts SGLang servers and no other known program, and certainly no
    server uses HiCache or Mooncake.

    Benchmarks are passed over, as are unknown programs.
    """
    started = [
        each for each in processes if each.kind not in (ProcessKind.OTHER, ProcessKind.BENCHMARK)
    ]
    servers = [each.server for each in started if each.server is not None]
    return len(servers) == len(started) > 0 and not any(
        server.hicache
        or isinstance(server.value("enable_hierarchical_cache"), Unknown)
        or isinstance(server.arguments.unread, Unknown)
        or uses_mooncake(each)
        for each, server in zip(started, servers, strict=True)
    )


def _brief(process: LaunchProcess) -> str:
    """Say in a few words which model or size a process has; "" for a process without either."""
    server, store = process.server, process.store
    if server is not None:
        return ", ".join(_server_brief(server, without_dp=routed_servers(process) is not None))
    if process.consumer is not None:
        return ", ".join(_consumer_brief(process.consumer))
    if store is not None:
        client = store.client
        if isinstance(client, Unknown):
            return "size not known"
        return format_bytes(client.segment_bytes)
    return ""


def _consumer_brief(consumer: Consumer) -> Iterator[str]:
    """Yield the model, releases, workers and pools of an engine that is not SGLang, in words."""
    model = consumer.model
    if isinstance(model, str):
        yield model.rstrip("/").rpartition("/")[2]
    for named, release in consumer.other_releases():
        yield f"{named}, read as {release}"
    if isinstance(consumer.ranks, Unknown):
        yield "workers not known"
    elif consumer.ranks > 1:
        yield f"{consumer.ranks} workers"
    for client_of in consumer.clients:
        client = client_of.store.client
        if isinstance(client, Unknown):
            yield "size not known"
        else:
            yield f"{format_bytes(client.segment_bytes)} a worker"
    for cpu_pool in consumer.pools:
        each = "an engine" if cpu_pool.of_engine else "a worker"
        yield f"CPU pool {format_bytes(cpu_pool.memory.bytes)} {each}"


def _server_brief(server: SglangServer, without_dp: bool) -> Iterator[str]:
    """Yield the settings that distinguish a server.

    Args:
        without_dp: Leave out dp, as each replica is counted as a server.
    """
    model = server.value("model_path")
    name = model.rstrip("/").rpartition("/")[2] if isinstance(model, str) else "model not known"
    yield name or "no model named"
    for name, short in (("tp_size", "tp"), ("dp_size", "dp"), ("pp_size", "pp")):
        value = server.value(name)
        if isinstance(value, Unknown):
            yield f"{short} not known"
        elif isinstance(value, int) and value > 1 and not (without_dp and short == "dp"):
            yield f"{short} {value}"
    if server.mode in ("prefill", "decode"):
        yield server.mode
    if server.links:
        yield "Mooncake linker" if server.store is not None else "external linker"
    if server.hicache:
        backend = server.value("hicache_storage_backend")
        known = isinstance(backend, str)
        yield (
            f"HiCache on {'Mooncake' if backend == 'mooncake' else backend}" if known else "HiCache"
        )
