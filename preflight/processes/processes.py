"""Which processes a source starts, each understood as its program understands it."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from functools import cache, wraps
from operator import is_
from typing import Any, NamedTuple, ParamSpec, TypeVar

from checks.framework.installed import Installed
from checks.framework.regex import regex
from checks.framework.unknown import Unknown
from preflight.base.program import data_file
from preflight.engines.consumers.consumer import Consumer, NamedRelease
from preflight.engines.programs.mooncake_flags import flags_of, with_config_file
from preflight.engines.programs.sglang_argument_tables import (
    RefusedError,
    argument_flags,
    argument_table,
)
from preflight.engines.programs.sglang_arguments import (
    ParsedArguments,
    SettingValue,
    merged_words,
    parse_sglang_arguments,
)
from preflight.engines.programs.store_config import read_store_config
from preflight.engines.programs.store_processes import (
    StoreProcess,
    read_mooncake_client,
    read_store_service,
)
from preflight.engines.sglang.server import SglangServer
from preflight.launches.source import Command, ReadFile, Word
from preflight.processes.containers import command_file_reader
from preflight.processes.image_releases import named_releases

P = ParamSpec("P")
Result = TypeVar("Result")


class ProcessKind(Enum):
    SGLANG = "SGLang server"
    STORE_SERVICE = "Mooncake store service"
    CLIENT = "mooncake_client"
    MASTER = "mooncake_master"
    METADATA = "metadata server"
    ROUTER = "router"
    VLLM = "vLLM server"
    DYNAMO_SGLANG = "Dynamo SGLang worker"
    DYNAMO_VLLM = "Dynamo vLLM worker"
    LMCACHE = "LMCache server"
    ENGINE = "inference engine"
    ETCD = "etcd"
    REDIS = "Redis"
    NATS = "NATS"
    BENCHMARK = "benchmark"
    OTHER = "other program"


# Servers, and a router in front of them.
_CONSUMERS = (ProcessKind.VLLM, ProcessKind.DYNAMO_VLLM, ProcessKind.LMCACHE)
_WITH_ROUTER = "sglang_router.launch_server"
# What Dynamo makes of its own values of SGLang's flags; those that it takes away are defaults here.
_MODES = dict.fromkeys(("agg", "pd", "encode"), "null")
_DYNAMOS_VALUES = {"--disaggregation-mode": _MODES, "--load-format": {"gms": "auto"}}


@cache
def _known(what: str) -> Mapping[str, ProcessKind]:
    """Return the kinds of ``data/known_programs.txt`` by name.

    Args:
        what: Module or program.
    """
    with open(data_file("known_programs.txt"), encoding="ascii") as file:
        rows = [line.split()[1:] for line in file if line.startswith(f"{what} ")]
    return {name: ProcessKind[row_kind] for row_kind, *names in rows for name in names}


# SGLang 0.5.23 mem_cache/storage: the others keep memory of their own in each rank (hf3fs shared
# memory, nixl and eic buffers of a batch of pages, aibrix a cache).
_COUNTED_BACKENDS = ("mooncake", "file", "sim")
# Whose flags preflight/engines/tables/mooncake_flags.txt has.
GFLAGS_PROGRAMS = {ProcessKind.MASTER: "mooncake_master", ProcessKind.CLIENT: "mooncake_client"}
_ALONE = (ProcessKind.STORE_SERVICE, ProcessKind.CLIENT, ProcessKind.MASTER, ProcessKind.METADATA)
# -m among the interpreter's options, with the module behind it or attached to it: -um sglang.x.
_RUNS_MODULE = regex(r"-[BEIOPSbdiqsuvx]*m(.*)", re.DOTALL)


def keep_last(function: Callable[P, Result]) -> Callable[P, Result]:
    """Decorate a function of a launch: called again with the very same objects, it returns the
    result that it has kept.

    Only the last result is kept; a call with keywords drops that result.
    """
    kept: list[tuple[tuple[Any, ...], Result]] = []

    @wraps(function)
    def call(*arguments: P.args, **keywords: P.kwargs) -> Result:
        """Return the result that is kept for these arguments, else a new result."""
        for before, result in kept:
            same = len(before) == len(arguments) and all(map(is_, before, arguments))
            if same and not keywords:
                return result
        result = function(*arguments, **keywords)
        kept[:] = [] if keywords else [(arguments, result)]
        return result

    return call


def is_program(word: str) -> bool:
    """Return whether a word names a program that starts without arguments, folder or not."""
    name = word.rpartition("/")[2]
    return _known("program").get(name) in _ALONE and not name.endswith(".py")


class LaunchProcess(NamedTuple):
    """One process of a launch.

    Attributes:
        server: Of an SGLang server.
        consumer: Of another engine.
        store: The store client of a store's own process, or the first of ``consumer``.
        number: Of its command in the launch, by which other records name the process.
        unread: Why a part of its settings or memory is not known, or None.
    """

    kind: ProcessKind
    command: Command
    arguments: tuple[Word, ...]
    server: SglangServer | None = None
    store: StoreProcess | None = None
    number: int = 0
    unread: Unknown | None = None
    consumer: Consumer | None = None

    @property
    def name(self) -> str:
        return f"{self.kind.value} ({self.command.origin})"

    @property
    def stores(self) -> tuple[StoreProcess, ...]:
        """Return the store clients that a process sets up: several of some consumers."""
        if self.consumer is not None:
            return tuple(client.store for client in self.consumer.clients)
        return () if self.store is None else (self.store,)

    @property
    def open_words(self) -> Iterator[Word]:
        """Yield the words whose text is not known, except for values of flags.

        For an SGLang server, only words that its parser does not recognize are looked at.
        """
        program = GFLAGS_PROGRAMS.get(self.kind)
        flags = {} if program is None else flags_of(program)
        value_of = ""
        for word in self.server.arguments.unrecognized if self.server else self.arguments:
            is_flag = word.text.startswith("-")
            is_open = word.unresolved and (not is_flag or "$" in word.flag)
            # What follows a flag of a store's own process is its value, unless it is a switch.
            if is_open and (self.server or not value_of):
                yield word
            named = flags.get(word.text.lstrip("-").replace("-", "_"))
            takes_value = is_flag and "=" not in word.text and (not named or named.type != "bool")
            value_of = word.text if takes_value else ""


def understand(
    commands: Sequence[Command],
    read_file: ReadFile,
    sglang_version: str | None = None,
    installed: Mapping[str, str] | None = None,
) -> tuple[LaunchProcess, ...]:
    """Return every command as a process of a known kind; all other programs are ``OTHER``.

    Args:
        sglang_version: As for ``parse_sglang_arguments``, which raises ValueError if it is no
            version.
        installed: The host's releases of engines beside SGLang, which run outside of containers.
    """
    of_host = {
        name: NamedRelease(release, "this host") for name, release in (installed or {}).items()
    }
    return tuple(
        _understand(command, read_file, sglang_version, commands, of_host)._replace(number=number)
        for number, command in enumerate(commands)
    )


def _understand(
    command: Command,
    read_file: ReadFile,
    sglang_version: str | None,
    commands: Sequence[Command],
    of_host: Mapping[str, NamedRelease],
) -> LaunchProcess:
    """Return one command as a process, with its arguments read as its program reads them.

    Args:
        commands: Of the whole launch, for releases that pip installs.
        of_host: Releases of engines on the host, for a process outside of containers.
    """
    process_kind, arguments = classify(command)
    environment = command.environment
    read_file = command_file_reader(command, read_file)
    if process_kind in (ProcessKind.SGLANG, ProcessKind.DYNAMO_SGLANG):
        handed_on, unread = arguments, None
        if process_kind is ProcessKind.DYNAMO_SGLANG:
            handed_on, unread = _without_dynamo_flags(arguments, environment)
        elif with_router(command):
            handed_on = arguments = tuple(_without_router_flags(arguments))
        server = _server(command, handed_on, read_file, sglang_version)
        unread = _uncounted_memory(server) if unread is None else unread
        return LaunchProcess(process_kind, command, arguments, server, unread=unread)
    if process_kind is ProcessKind.MASTER:
        arguments, unread = with_config_file(arguments, read_file)
        return LaunchProcess(process_kind, command, arguments, unread=unread)
    if process_kind in _CONSUMERS:
        here = of_host if command.container is None else {}
        named = {**here, **named_releases(command, commands)}
        consumer = _consumer(process_kind, command, arguments, read_file, named)
        first = next((client.store for client in consumer.clients), None)
        consumer = consumer._replace(named=named)
        return LaunchProcess(process_kind, command, arguments, store=first, consumer=consumer)
    store = None
    if process_kind is ProcessKind.STORE_SERVICE:
        store = read_store_service(arguments, environment, read_file)
    elif process_kind is ProcessKind.CLIENT:
        store = read_mooncake_client(arguments, environment)
    return LaunchProcess(process_kind, command, arguments, store=store)


def _consumer(
    process_kind: ProcessKind,
    command: Command,
    arguments: tuple[Word, ...],
    read_file: ReadFile,
    named: Mapping[str, NamedRelease],
) -> Consumer:
    """Return the record of a vLLM server, a Dynamo vLLM worker or an LMCache server: the memory
    that it takes.

    Args:
        named: Releases that the launch or the host names, by product.
    """
    if process_kind is ProcessKind.LMCACHE:
        from preflight.engines.consumers.lmcache import read_lmcache_server

        return read_lmcache_server(command.words, arguments)
    from preflight.engines.consumers.vllm import read_dynamo_vllm, read_vllm

    lmcache = named["lmcache"].release if "lmcache" in named else ""
    if process_kind is ProcessKind.VLLM:
        return read_vllm(arguments, command.environment, read_file, lmcache)
    dynamo = named["dynamo"].release if "dynamo" in named else None
    return read_dynamo_vllm(arguments, command.environment, read_file, dynamo, lmcache)


def classify(command: Command) -> tuple[ProcessKind, tuple[Word, ...]]:
    """Return a command's kind, and the arguments of its program: the words behind the program or
    module.

    A program that is not known is ``OTHER``, as is a command without words.
    """
    argv = command.words
    if not argv:
        return ProcessKind.OTHER, ()
    program = argv[0].text.rpartition("/")[2]
    second, third = [*(word.text for word in argv[1:3]), "", ""][:2]
    if (program, second) == ("sglang", "serve"):
        return ProcessKind.SGLANG, _serve_words(argv[2:])
    if program == "vllm" and second != "serve":
        if second == "bench" and third in ("latency", "throughput"):  # of an engine of its own
            return ProcessKind.ENGINE, argv[3:]
        return ProcessKind.OTHER, argv[1:]  # vllm bench serve, vllm chat
    if program == "ollama":  # its other commands ask the server
        return ProcessKind.ENGINE if second == "serve" else ProcessKind.OTHER, argv[1:]
    if (program, second) == ("lmcache", "server"):
        return ProcessKind.LMCACHE, argv[2:]
    if program in _known("program"):
        return _known("program")[program], argv[1:]
    # Whatever $PYTHON is, what takes -m is one.
    if program.startswith("python") or (argv[0].unresolved and second == "-m"):
        return _python(argv)
    return ProcessKind.OTHER, argv[1:]


def _python(argv: tuple[Word, ...]) -> tuple[ProcessKind, tuple[Word, ...]]:
    """Return the kind of the module or script that Python runs, and the words behind it.

    Args:
        argv: All words, the interpreter first.
    """
    index = 1
    while index < len(argv):
        text = argv[index].text
        if match := _RUNS_MODULE.fullmatch(text):
            attached = match.group(1)
            module = attached or (argv[index + 1].text if index + 1 < len(argv) else "")
            behind = argv[index + 1 + (not attached) :]
            process_kind = _known("module").get(module, ProcessKind.OTHER)
            # With an address it measures the server that runs there.
            asks = module == "sglang.bench_one_batch_server"
            asks = asks and any(word.flag == "--base-url" for word in behind)
            return ProcessKind.OTHER if asks else process_kind, behind
        if text.startswith("-c"):
            break
        if not text.startswith("-"):
            process_kind = _known("program").get(text.rpartition("/")[2], ProcessKind.OTHER)
            prefixed = _slime_words(argv[index + 1 :]) if process_kind is ProcessKind.OTHER else ()
            return (ProcessKind.SGLANG, prefixed) if prefixed else (process_kind, argv[index + 1 :])
        # -W ignore and -X faulthandler take the next word.
        index += 2 if text in ("-W", "-X", "--check-hash-based-pycs") else 1
    return ProcessKind.OTHER, argv[1:]


def with_router(command: Command) -> bool:
    """Return whether servers start behind a router, by ``--router-...``."""
    return any(word.text == _WITH_ROUTER for word in command.words)


def _without_router_flags(argv: tuple[Word, ...]) -> Iterator[Word]:
    """Yield the words that a router hands on to servers: not ``--router-...`` and its values."""
    left_out = False
    for word in argv:
        if word.text.startswith("--"):
            left_out = word.text.startswith("--router-")
        if not left_out:
            yield word


def flag_values(argv: tuple[Word, ...]) -> dict[str, Word]:
    """Return the last word behind each flag, or behind its "="; a flag at the end has none."""
    values: dict[str, Word] = {}
    for word, following in zip(argv, (*argv[1:], None), strict=False):
        flag, equals, attached = word.text.partition("=")
        value = word._replace(text=attached) if equals else following
        if word.text.startswith("--") and value is not None:
            values[flag] = value
    return values


def _slime_words(argv: tuple[Word, ...]) -> tuple[Word, ...]:
    """Return SGLang's own words in a training script of THUDM/slime (sglang_utils/arguments.py).

    ``--sglang-page-size 64`` becomes ``--page-size 64``, and ``--hf-checkpoint`` becomes
    ``--model-path``.

    Returns:
        () if no word starts with ``--sglang-``, or ``--hf-checkpoint`` is missing.
    """
    handed_on: list[Word] = []
    taken = False
    for word in argv:
        taken = word.text.startswith("--sglang-") if word.text.startswith("--") else taken
        if taken:
            handed_on.append(word._replace(text=word.text.replace("--sglang-", "--", 1)))
    values = flag_values(argv)
    if not handed_on or "--hf-checkpoint" not in values:
        return ()
    flags = {"--hf-checkpoint": "--model-path", "--rollout-num-gpus-per-engine": "--tp-size"}
    pairs = [(values[name], flag) for name, flag in flags.items() if name in values]
    front = [each for word, flag in pairs for each in (word._replace(text=flag), word)]
    return (*front, *handed_on)


def _serve_words(argv: tuple[Word, ...]) -> tuple[Word, ...]:
    """Return the words of ``sglang serve MODEL`` with the flag that it leaves out before MODEL."""
    if argv and not argv[0].text.startswith("-"):
        return (argv[0]._replace(text="--model-path", unresolved=()), *argv)
    return argv


def _arguments(
    argv: tuple[Word, ...], read_file: ReadFile, sglang_version: str | None
) -> ParsedArguments:
    """Return SGLang's arguments, those of the file behind ``--config`` among them.

    A file that SGLang refuses is in ``error``; one that cannot be read here, in ``unread``.
    """
    if all(word.text != "--config" for word in argv):
        return parse_sglang_arguments(argv, sglang_version)
    try:
        merged = merged_words(argv, argument_table(sglang_version), read_file)
    except RefusedError as refusal:
        # Every release that reads such a file refuses it alike.
        parsed = parse_sglang_arguments(argv, sglang_version)
        return parsed._replace(error=str(refusal), exact=True)
    if isinstance(merged, Unknown):
        return parse_sglang_arguments(argv, sglang_version)._replace(error=None, unread=merged)
    return parse_sglang_arguments(merged, sglang_version)


def _without_dynamo_flags(
    argv: tuple[Word, ...], environment: Mapping[str, Word]
) -> tuple[tuple[Word, ...], Unknown | None]:
    """Return the words that ``dynamo.sglang`` hands on to SGLang; and an Unknown if a disagg config
    is in use, a file that holds more words and is not read here, else None.

    Left out, with their values: flags that SGLang does not have, which are Dynamo's own (ai-dynamo
    1.6.1: --namespace, --endpoint, --dyn-...) or misspelled, which ends the worker. A value that
    only Dynamo knows is replaced by the one that Dynamo hands to SGLang (sglang/args.py).
    """
    names = ("--disagg-config", "--disagg-config-key")
    flags = [name for name in names if any(word.flag == name for word in argv)]
    set_ = [name for name in environment if name.startswith("DYN_SGL_DISAGG_CONFIG")]
    unread = None
    if len(flags) + len(set_) > 1:  # one of them alone is passed over
        unread = Unknown(f"which of SGLang's arguments stand in {' and '.join((*flags, *set_))}")
    known = tuple(argument_flags())
    kept: list[Word] = []
    keeps = True
    for word in argv:
        if word.text.startswith("-") and not word.text[1:2].isdecimal():
            # Dynamo reads --config F alone; --config=F reaches nobody.
            keeps = any(flag.startswith(word.flag) for flag in known) and not word.text.startswith(
                ("--config=", "--enable-multimodal")  # the second is Dynamo's own too
            )
        if keeps:
            kept.append(word)
    return tuple(_with_sglang_values(kept)), unread


def _with_sglang_values(argv: list[Word]) -> Iterator[Word]:
    """Yield words with Dynamo's values of SGLang's flags replaced by SGLang's own."""
    flag = ""
    for word in argv:
        name, equals, attached = word.text.partition("=")
        of_flag = _DYNAMOS_VALUES.get(name if equals else flag, {})
        meant = of_flag.get(attached if equals else word.text)
        yield word if meant is None else word._replace(text=f"{name}={meant}" if equals else meant)
        flag = word.text


def _server(
    command: Command, argv: tuple[Word, ...], read_file: ReadFile, sglang_version: str | None
) -> SglangServer:
    """Return a server with its arguments, and the store that its storage backend opens.

    The store is None unless the backend is mooncake and HiCache, decode offload, a decode server or
    the linker uses it.
    """
    arguments = _arguments(argv, read_file, sglang_version)
    store = None
    hicache = arguments.value("enable_hierarchical_cache") is True
    offloads = arguments.value("disaggregation_decode_enable_offload_kvcache") is True
    # A decode server's host pool for retracted requests attaches the storage backend too.
    decodes = arguments.value("disaggregation_mode") == "decode"
    backend = arguments.value("hicache_storage_backend")
    attached = backend if hicache or offloads or decodes else None
    extra: SettingValue = arguments.settings["hicache_storage_backend_extra_config"]
    if arguments.value("enable_unified_cache_external_linker") is True:
        # registry.py, linker_factory.py: up to 0.5.22 the extra config is the linker's alone.
        attached = arguments.value("unified_cache_external_linker_backend")
        linker_config = arguments.settings["unified_cache_external_linker_config"]
        extra = extra if linker_config.value is None else linker_config
    if attached == "mooncake":
        store = read_store_config(extra, command.environment, read_file, sglang_version)
    server = SglangServer(command, arguments, store, attached)
    if store is not None and server.links and store.value("standalone_storage") is True:
        error = "AttributeError: 'NoneType' object has no attribute 'allocator'"
        advice = "a linker has no host pool, which standalone_storage needs"
        return server._replace(store=store._replace(error=f"{error}: {advice}"))
    return server


def _uncounted_memory(server: SglangServer) -> Unknown | None:
    """Return which memory of a server nothing here counts; None if all is counted."""
    if server.value("enable_lmcache") is True:
        # LMCache's pool in each rank, or its own server's: it depends on LMCache's release.
        return Unknown("what LMCache takes behind --enable-lmcache")
    if isinstance(server.backend, str) and server.backend not in _COUNTED_BACKENDS:
        flag = "unified-cache-external-linker" if server.links else "hicache-storage"
        return Unknown(
            f"what --{flag}-backend {server.backend} takes beside the L2 pool",
            advice="leave memory for it beside what is counted here",
        )
    return None


class LaunchOptions(NamedTuple):
    """What the command line says beside the launch.

    Attributes:
        installed: The software of a captured machine; None takes that beside this program.
        origins: The places of versions that no option gave.
        host_group: Which of several hosts is checked.
    """

    available_bytes: int | None = None
    nic_nodes: tuple[int, ...] | None = None
    rank_nodes: tuple[int, ...] | None = None
    mooncake_version: str | None = None
    sglang_version: str | None = None
    model_config: str | None = None  # the text of a config.json
    gpu_bytes: int | None = None  # the memory of the smallest GPU
    installed: Installed | None = None
    origins: Mapping[str, str] = {}
    host_group: str | None = None
