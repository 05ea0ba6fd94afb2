"""Rules about SGLang's arguments: HiCache, disaggregation, and words that are left open."""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from math import prod
from typing import NamedTuple

from checks.framework.needs import running_with_last
from checks.framework.problem import Match, Problems
from checks.framework.unknown import Unknown, require
from checks.host_snapshot.secrets import clean_words
from preflight.engines.programs.sglang_argument_tables import (
    argument_flags,
    argument_table,
    known_releases,
    releases_with,
)
from preflight.engines.programs.sglang_arguments import ParsedArguments, parse_sglang_arguments
from preflight.engines.programs.sglang_refusals import every_release_refuses, refusals
from preflight.engines.programs.store_config import StoreConfig
from preflight.engines.sglang.launch import l2_gigabytes
from preflight.engines.sglang.server import SglangServer
from preflight.launch_problems.rules.rules import Spelling, at, is_misspelt, replaced
from preflight.launches.source import Word, open_names, open_variables
from preflight.processes.containers import network_of
from preflight.processes.image_releases import is_unreleased
from preflight.processes.processes import LaunchProcess, ProcessKind, keep_last
from preflight.processes.services import (
    RouterTarget,
    listens_elsewhere,
    named_services,
    router_targets,
)

RULES = Problems("hicache.md")
# What stands in an example for words that its writer left out.
LEFT_OUT = ("...", "\N{HORIZONTAL ELLIPSIS}")
# The arguments that a script itself was given.
OWN_ARGUMENTS = ("$@", "$*", "${@}", "${*}")
_POOL, _QUEUES = "SGLANG_DISAGGREGATION_THREAD_POOL_SIZE", "SGLANG_DISAGGREGATION_QUEUE_SIZE"
# environ.py; conn.py, without the variable: min(max(4, CPUs / 2 // 8), 12).
DEFAULT_QUEUES, MOST_THREADS = 4, 12
# Who misspells more has another program, and reads the first few.
MOST_EDITS = 6
_READ = (ProcessKind.SGLANG, ProcessKind.STORE_SERVICE, ProcessKind.CLIENT)


@RULES("arguments-not-set")
def arguments_not_set(processes: tuple[LaunchProcess, ...]) -> Iterator[Match]:
    for process, word in _open_words(processes):
        # What a command writes, or a program computes, nobody sets.
        if not _is_script_argument(word) and open_variables(word):
            text = f"{process.kind.value}: {word.text}: {open_names(word)} is not set"
            yield Match(text, word.origin)


@RULES("script-arguments")
def script_arguments(processes: tuple[LaunchProcess, ...]) -> Iterator[Match]:
    for process, word in _open_words(processes):
        if _is_script_argument(word):
            yield Match(f"{process.kind.value}: {word.text} passes them on", word.origin)


@RULES("arguments-refused")
def arguments_refused(server: SglangServer) -> Iterator[Match]:
    """Yield a finding for the parser's error, and one for the words that the parser does not
    recognize.

    Only what surely stops the server counts: if the release is assumed, what every release refuses.
    A "..." that an example left in the launch is reported in place of those words.
    """
    arguments = server.arguments
    if arguments.error and (arguments.exact or _all_releases_refuse(arguments.argv)):
        where = arguments.refused[0].origin if arguments.refused else None
        message = f"error: {arguments.error}{_elsewhere(arguments)}"
        yield Match(message, where, _correction(server))
    left_words = tuple(word for word in arguments.unrecognized if _is_known(word))
    for word in left_words:
        if word.text in LEFT_OUT:
            text = f"{word.text}: an example leaves words out here, and every SGLang refuses it"
            edit = f"{at(word.origin)} write what the example leaves out, or remove {word.text}"
            yield Match(text, word.origin, edit)
            return
    left_over = _with_flags(left_words)
    # A misspelt flag is refused by every release, the assumed one or another.
    misspelt = tuple(each for each in left_over if each.misspelt)
    certain = left_over if arguments.exact else misspelt
    if certain:
        yield _unrecognized_match(certain, arguments)


@RULES("values-refused")
def values_refused(server: SglangServer) -> Iterator[Match]:
    """Yield a finding for each value that the parser takes and the server surely refuses."""
    arguments = server.arguments
    model = server.value("model_path")
    if isinstance(model, str) and not model.strip("/ "):
        hint = "where a variable holds it, set that in front, or give --env-file"
        yield Match(f"--model-path is {model!r}: no model is named; {hint}")
    if not arguments.error and (arguments.exact or every_release_refuses(arguments)):
        yield from map(Match, refusals(arguments, arguments.version))


@RULES("argument-unknown")
def argument_unknown(server: SglangServer) -> Iterator[Match]:
    """Yield a finding for the parser's error, for each refused value, and for all unknown flags, if
    only the assumed release surely refuses them.

    Nothing if the release is certain, or the image is of no release, which may take them.
    """
    arguments = server.arguments
    if arguments.exact or is_unreleased(server.command.container):
        return
    if arguments.error and not _all_releases_refuse(arguments.argv):
        where = arguments.refused[0].origin if arguments.refused else None
        message = f"error: {arguments.error}{_elsewhere(arguments)}"
        edit = _correction(server) if _releases_of_refused(arguments) else ""
        yield Match(f"SGLang {arguments.version} says: {message}", where, edit)
    elif not arguments.error and not every_release_refuses(arguments):
        for says in refusals(arguments, arguments.version):
            yield Match(f"SGLang {arguments.version} says: {says}")
    left_over = _with_flags(tuple(word for word in arguments.unrecognized if _is_known(word)))
    unsure = tuple(each for each in left_over if each.flag and not each.misspelt)
    if unsure:
        yield _unrecognized_match(unsure, arguments)


@RULES("hicache-not-enabled")
def hicache_not_enabled(server: SglangServer) -> Iterator[Match]:
    """Yield a finding if --hicache-* flags are given to a server that does not read them."""
    if server.arguments.unread is not None:  # a file that was not read may enable it
        return
    if server.hicache or server.value("disaggregation_decode_enable_offload_kvcache") is True:
        return
    names = [name for name in server.arguments.written if name.startswith("hicache_")]
    # A decode server reads them for the host pool in which it keeps retracted requests.
    if names and server.mode != "decode":
        flags = ", ".join("--" + name.replace("_", "-") for name in names)
        yield Match(f"{flags}: without --enable-hierarchical-cache nothing reads them")


@RULES("hicache-size-per-rank")
def hicache_size_per_rank(server: SglangServer) -> Iterator[Match]:
    size, ranks = l2_gigabytes(server), _ranks(server)
    if server.hicache and size and ranks > 1:
        yield Match(f"--hicache-size {size} is {size} x 10^9 bytes for each of {ranks} ranks")


@RULES("hicache-size-unset")
def hicache_size_unset(server: SglangServer) -> Iterator[Match]:
    """Yield a finding for a negative --hicache-size, and for a --hicache-ratio of 0 or less without
    a --hicache-size.
    """
    size, ratio = server.value("hicache_size"), server.value("hicache_ratio")
    if isinstance(size, int) and size < 0:
        text = f"--hicache-size {size}: taken as not set, --hicache-ratio decides"
        yield Match(text, None, "write a positive --hicache-size, or leave it out")
    if isinstance(ratio, float) and ratio <= 0 and not l2_gigabytes(server):
        what = "a pool of one page" if ratio == 0 else "OverflowError at start"
        yield Match(f"--hicache-ratio {ratio:g}: {what}", None, "write a positive --hicache-ratio")


@RULES("page-size-one")
def page_size_one(server: SglangServer, store: StoreConfig) -> Iterator[Match]:
    if server.value("page_size") == 1:
        yield Match("--page-size 1 with the Mooncake store")
    elif server.value("page_size") is None and server.arguments.unread is None:
        yield Match("no --page-size: 1 on CUDA, unless the model or attention backend sets its own")


@RULES("layout-rewritten")
def layout_rewritten(server: SglangServer) -> Iterator[Match]:
    """Yield a finding if HiCache is on and SGLang changes the host memory layout or the I/O backend
    that the arguments, or their defaults, name.
    """
    if not server.hicache:
        return
    layout, backend = server.value("hicache_mem_layout"), server.value("hicache_io_backend")
    if layout == "page_first_direct" and backend == "kernel":
        text = "page_first_direct with the kernel I/O backend: direct is used"
        yield Match(text, None, "write --hicache-io-backend direct")
    elif layout == "page_first" and backend == "direct":
        text = "page_first with the direct I/O backend: page_first_direct is used"
        yield Match(text, None, "write --hicache-mem-layout page_first_direct")
    elif layout == "layer_first" and server.store is not None:
        yield Match("layer_first with the Mooncake store: page_first or page_first_direct is used")


@RULES("attach-at-runtime")
def attach_at_runtime(server: SglangServer) -> Iterator[Match]:
    """Yield a finding for each setting that will be wrong once a storage backend is attached to the
    running server, as --admin-api-key allows.
    """
    attached = server.hicache and server.value("hicache_storage_backend") is None
    if not attached or server.value("admin_api_key") is None:
        return
    if server.value("hicache_mem_layout") == "layer_first":
        text = "attaching is allowed by --admin-api-key; --hicache-mem-layout layer_first stays"
        yield Match(text, None, "write --hicache-mem-layout page_first")
    word = server.environment.get("MOONCAKE_STANDALONE_STORAGE")
    if word is not None and word.text.strip().lower() in ("1", "true", "yes", "y"):
        text = "the host pool is not Mooncake's, which standalone storage needs"
        edit = "name --hicache-storage-backend mooncake at the start"
        yield Match(f"MOONCAKE_STANDALONE_STORAGE={word.text}: {text}", word.origin, edit)


@RULES("storage-needs-other-kv-type")
def storage_needs_other_kv_type(server: SglangServer) -> Iterator[Match]:
    stores = server.hicache and server.value("hicache_storage_backend") is not None
    if stores and server.value("kv_cache_dtype") == "mxfp8":
        yield Match("--kv-cache-dtype mxfp8 with --hicache-storage-backend")


@RULES("prefetch-best-effort")
def prefetch_best_effort(server: SglangServer, store: StoreConfig) -> Iterator[Match]:
    if server.value("hicache_storage_prefetch_policy") == "best_effort":
        yield Match("--hicache-storage-prefetch-policy best_effort")


@RULES("max-total-tokens-bounds")
def max_total_tokens_bounds(server: SglangServer) -> Iterator[Match]:
    tokens = server.value("max_total_tokens")
    if server.hicache and isinstance(tokens, int) and not l2_gigabytes(server):
        yield Match(f"--max-total-tokens {tokens} is an upper bound of the host pool")


@RULES("sglang-hugepages-ignored")
def sglang_hugepages_ignored(server: SglangServer) -> Iterator[Match]:
    word = server.environment.get("SGLANG_HUGEPAGE_SIZE")
    if word and server.store:
        yield Match(f"SGLANG_HUGEPAGE_SIZE={word.text} has no effect", word.origin)


@RULES("sglang-hugepage-size-refused")
def sglang_hugepage_size_refused(server: SglangServer) -> Iterator[Match]:
    word = server.environment.get("SGLANG_HUGEPAGE_SIZE")
    read = word is not None and not word.unresolved and not server.store
    if word and read and word.text.strip().upper() not in ("2MB", "1GB", ""):
        yield Match(f"SGLANG_HUGEPAGE_SIZE={word.text}", word.origin)


@RULES("register-chunk-ignored")
def register_chunk_ignored(server: SglangServer) -> Iterator[Match]:
    word = server.environment.get("SGLANG_HICACHE_HOST_REGISTER_CHUNK_GB")
    layout = server.value("hicache_mem_layout")
    if word and server.hicache and layout in ("layer_first", "page_head"):
        yield Match(f"SGLANG_HICACHE_HOST_REGISTER_CHUNK_GB with the layout {layout}", word.origin)


@RULES("gate-assumes-one-engine")
def gate_assumes_one_engine(processes: tuple[LaunchProcess, ...]) -> Iterator[Match]:
    """Yield a finding for servers with HiCache that run at one time, and for each server with
    HiCache and data-parallel replicas.

    SGLang's memory check counts only one engine.
    """
    servers = [process.server for process in processes if process.server and process.server.hicache]
    commands = [server.command for server in servers]
    for turn in dict.fromkeys(command.turn for command in commands):
        together = running_with_last([each for each in commands if each.turn == turn])
        if len(together) > 1:
            places = ", ".join(dict.fromkeys(str(command.origin) for command in together))
            yield Match(f"{len(together)} servers with HiCache run at one time: {places}")
    for server in servers:
        replicas = server.replicas
        if isinstance(replicas, int) and replicas > 1:
            yield Match(f"{replicas} data-parallel replicas with HiCache", server.command.origin)


@RULES("hicache-with-radix-disabled")
def hicache_with_radix_disabled(server: SglangServer) -> Iterator[Match]:
    """Yield a finding if HiCache is on and the server's radix cache is off."""
    if not server.hicache:
        return
    if server.value("disable_radix_cache") is True:
        off, command = "--disable-radix-cache", server.command
        where = next((w.origin for w in command.words if w.text == off), command.origin)
        yield Match(f"--enable-hierarchical-cache with {off}", where, f"{at(where)} remove {off}")
    flag, place = "--disaggregation-decode-enable-radix-cache", at(server.command.origin)
    if server.mode != "decode" or server.value(flag[2:].replace("-", "_")) is True:
        return
    edit = f"{place} add {flag}"
    if server.value("disaggregation_decode_enable_offload_kvcache") is True:
        edit = f"{place} remove --enable-hierarchical-cache: decode offload goes without it"
    text = "--enable-hierarchical-cache on a decode server, whose radix cache is off without"
    yield Match(f"{text} {flag}", None, edit)


@RULES("decode-offload-misplaced")
def decode_offload_misplaced(server: SglangServer) -> Iterator[Match]:
    """Yield a finding for each reason why SGLang refuses decode offload on this server."""
    if server.value("disaggregation_decode_enable_offload_kvcache") is not True:
        return
    place, flag = at(server.command.origin), "--disaggregation-decode-enable-offload-kvcache"
    if server.mode != "decode":
        text = f"decode offload with --disaggregation-mode {server.mode}"
        yield Match(text, None, f"{place} remove {flag}, or write --disaggregation-mode decode")
    elif server.value("hicache_storage_backend") is None:
        text = "decode offload without --hicache-storage-backend"
        yield Match(text, None, f"{place} add --hicache-storage-backend mooncake")
    extra = server.value("hicache_storage_backend_extra_config")
    if isinstance(extra, str) and extra.startswith("@"):
        text = f"decode offload reads the extra config as JSON alone: {extra!r} is refused"
        yield Match(text, None, f"{place} write the JSON of {extra[1:]} itself")


@RULES("decode-host-pool")
def decode_host_pool(server: SglangServer) -> Iterator[Match]:
    offloads = server.value("disaggregation_decode_enable_offload_kvcache") is True
    if server.mode == "decode" and not server.hicache and not offloads:
        yield Match("--disaggregation-mode decode keeps a retraction pool in host memory")


@RULES("pd-registration-silent")
def pd_registration_silent(server: SglangServer) -> Iterator[Match]:
    backend = server.value("disaggregation_transfer_backend")
    if server.mode in ("prefill", "decode") and backend == "mooncake":
        yield Match(f"--disaggregation-mode {server.mode} with the transfer backend mooncake")


@RULES("embedding-store-per-process")
def embedding_store_per_process(server: SglangServer) -> Iterator[Match]:
    """Yield a finding if each encoder process adds the whole global segment to the store."""
    cached = server.value("enable_mm_global_cache") is True
    backend = server.value("mm_global_cache_backend")
    if not cached or server.value("encoder_only") is not True or backend != "mooncake":
        return
    word, ranks = server.environment.get("MOONCAKE_GLOBAL_SEGMENT_SIZE"), server.number("tp_size")
    size = "4gb, SGLang's default," if word is None else word.text
    if size != "0":
        count = ranks if isinstance(ranks, int) else "several"
        yield Match(f"global_segment_size {size} for each of {count} encoder processes")


@RULES("transfer-threads-too-few")
def transfer_threads_too_few(server: SglangServer) -> Iterator[Match]:
    """Yield a finding if a variable gives a prefill server fewer transfer threads than queues."""
    if server.mode != "prefill" or server.value("disaggregation_transfer_backend") != "mooncake":
        return
    written = server.environment.get(_POOL) or server.environment.get(_QUEUES)
    if written is None:
        return
    queues = _number(server, _QUEUES, DEFAULT_QUEUES)
    threads = _number(server, _POOL, MOST_THREADS)
    if queues is not None and threads is not None and threads < queues:
        least = "" if _POOL in server.environment else f" at most, as {_POOL} is not set"
        count = f"{threads} thread{'s' * (threads != 1)}{least}"
        yield Match(f"{count}, for {queues} queues", written.origin)


# Those that speak of a request in one way.
_ALIKE = {"ascend": "mooncake"}


@RULES("pd-backends-differ")
def pd_backends_differ(processes: tuple[LaunchProcess, ...]) -> Iterator[Match]:
    """Yield a finding if prefill and decode servers have no transfer backend in common.

    Nothing if a server's mode or backend is not known, or a backend is fake.
    """
    servers = [process.server for process in processes if process.server is not None]
    if any(isinstance(server.value("disaggregation_mode"), Unknown) for server in servers):
        return
    used: dict[str, dict[str, SglangServer]] = {"prefill": {}, "decode": {}}
    for server in servers:
        if server.mode in used:
            backend = server.value("disaggregation_transfer_backend")
            if not isinstance(backend, str) or backend == "fake":
                return
            used[server.mode].setdefault(_ALIKE.get(backend, backend), server)
    prefill, decode = used.values()
    if prefill and decode and not prefill.keys() & decode.keys():
        both = (f"{mode} over {' and '.join(backends)}" for mode, backends in used.items())
        yield Match(", ".join(both), next(iter(decode.values())).command.origin)


@RULES("pd-bootstrap-differs")
def pd_bootstrap_differs(processes: tuple[LaunchProcess, ...]) -> Iterator[Match]:
    """Yield a finding for each prefill target whose server has another bootstrap port than the one
    that the router names.

    If the router names none, the decode servers' own port is compared.
    """
    decoding = {_bootstrap_port(process) for process in processes if _mode(process) == "decode"}
    for router, target, meant in _servers_of_targets(processes):
        if target.mode != "prefill":
            continue
        asked: set[object] = decoding if target.bootstrap is None else {target.bootstrap}
        bound = {_bootstrap_port(process) for process in meant if _mode(process) == "prefill"}
        known_ports = all(isinstance(port, int) for port in asked | bound)
        if not asked or not bound or asked & bound or not known_ports:
            continue
        who = f"the router says {target.bootstrap}"
        if target.bootstrap is None:
            who = f"the router says none, and decode takes its own, {_with_or(asked)}"
        named = f"{router.kind.value}: --prefill {target.word.text}"
        text = f"{named}: its bootstrap port is {_with_or(bound)}; {who}"
        yield Match(text, target.word.origin)


@RULES("pd-router-misdirected")
def pd_router_misdirected(processes: tuple[LaunchProcess, ...]) -> Iterator[Match]:
    """Yield a finding for each router target whose server runs in another mode, or whose host is a
    Compose service that listens on other ports.
    """
    for router, target, meant in _servers_of_targets(processes):
        modes, text = {_mode(process) for process in meant}, ""
        if not meant:
            host, port, _ = target.address
            text = listens_elsewhere(processes, host, port, "worker")
        elif target.mode not in modes and "" not in modes:
            text = f"that server runs with --disaggregation-mode {_with_or({*modes})}"
        if text:
            named = f"{router.kind.value}: --{target.mode} {target.word.text}"
            yield Match(f"{named}: {text}", target.word.origin)


@keep_last
def _servers_of_targets(
    processes: tuple[LaunchProcess, ...],
) -> list[tuple[LaunchProcess, RouterTarget, list[LaunchProcess]]]:
    """Return (router, target, servers that listen at that address) for each target of each router.

    A target is left out if the port of a server on its host is unknown. If the launch does not have
    a prefill target's host, all prefill servers are taken, provided that they are as many as the
    prefill targets.
    """
    servers = [process for process in processes if process.kind is ProcessKind.SGLANG]
    by_network: dict[str, list[LaunchProcess]] = {}
    for server in servers:
        by_network.setdefault(network_of(server.command), []).append(server)
    meant = []
    for router in processes:
        targets = list(router_targets(router))
        for target in targets:
            host = target.address.host
            named = named_services(processes).get(host, []) if host else []
            named = [each for each in named if each.kind is ProcessKind.SGLANG]
            if not named and host in ("localhost", "127.0.0.1", "0.0.0.0", "::1"):
                named = by_network.get(network_of(router.command), [])
            elif not named and target.mode == "prefill":
                named = [each for each in servers if _mode(each) == "prefill"]
                alike = [each for each in targets if each.mode == "prefill"]
                named = named if len(named) == len(alike) else []
            ports = [(each, each.server and each.server.value("port")) for each in named]
            if not any(isinstance(port, Unknown) for _, port in ports):
                there = [each for each, port in ports if port == target.address.port]
                meant.append((router, target, there))
    return meant


def _mode(process: LaunchProcess) -> str:
    """Return the disaggregation mode of a server: null, prefill or decode; "" if not known."""
    server = process.server
    unread = server is None or isinstance(server.value("disaggregation_mode"), Unknown)
    return "" if server is None or unread else server.mode


def _bootstrap_port(process: LaunchProcess) -> object:
    server = process.server
    return server.value("disaggregation_bootstrap_port") if server is not None else None


def _with_or(values: set[object]) -> str:
    return " or ".join(sorted(map(str, values)))


def _is_script_argument(word: Word) -> bool:
    return all(name in OWN_ARGUMENTS for name in word.unresolved)


def _open_words(processes: tuple[LaunchProcess, ...]) -> Iterator[tuple[LaunchProcess, Word]]:
    read = (process for process in processes if process.kind in _READ)
    return ((process, word) for process in read for word in process.open_words)


def _is_known(word: Word) -> bool:
    """Return whether the text of a word is known; of a flag, whether its name is."""
    flag = word.text.partition("=")[0]
    return not word.unresolved or (flag.startswith("-") and "$" not in flag and "`" not in flag)


class _Unrecognized(NamedTuple):
    """A word that the parser left over.

    Attributes:
        flag: "" for a value.
        releases: Those that have the flag.
        near: The most similar flag of all releases, or "".
    """

    word: Word
    flag: str
    releases: str = ""
    near: str = ""

    @property
    def misspelt(self) -> bool:
        return bool(self.near) and is_misspelt(self.flag, self.near)


@lru_cache(maxsize=4096)  # both rules ask, one for all servers after the other
def _with_flags(unrecognized: tuple[Word, ...]) -> tuple[_Unrecognized, ...]:
    """Return each word that the parser left over, with the releases that have its flag, or else the
    most similar flag.
    """
    spelling, left_over = Spelling(), []
    for word in unrecognized:
        flag = word.text.partition("=")[0]
        flag = flag if flag.startswith("-") else ""
        releases = _release_spans(flag) if flag else ""
        near = "" if releases or not flag else spelling.nearest(flag, argument_flags()) or ""
        left_over.append(_Unrecognized(word, flag, releases, near))
    return tuple(left_over)


def _unrecognized_match(left_over: tuple[_Unrecognized, ...], arguments: ParsedArguments) -> Match:
    """Return a finding with SGLang's message about left-over words, the names that may be meant,
    the releases that have such flags, and the edits.
    """
    version, exact = arguments.version, arguments.exact
    together = " ".join(_as_shown(left_over))
    meant = "".join(f"{each.flag}: did you mean {each.near}? " for each in left_over if each.near)
    other = "".join(f"; {each.flag} is in {each.releases}" for each in left_over if each.releases)
    first, *_, last = known_releases()
    every = not exact and all(each.misspelt for each in left_over)
    who = f"no SGLang from {first} to {last} has it" if every else f"SGLang {version}"
    text = f"error: unrecognized arguments: {together} ({who}){other}"
    edits = [_edit(each, exact) for each in left_over if each.flag]
    more = len(edits) - MOST_EDITS
    shown = [*edits[:MOST_EDITS], *([f"and {more} more, as the message names them"] * (more > 0))]
    return Match(meant + text, left_over[0].word.origin, "; ".join(shown) if all(edits) else "")


def left_over_as_shown(unrecognized: tuple[Word, ...]) -> list[str]:
    """Return the left-over words without secrets, and without values of unknown flags."""
    return list(_as_shown(_with_flags(unrecognized)))


def _as_shown(left_over: Sequence[_Unrecognized]) -> Iterator[str]:
    """Yield the text of each left-over word without secrets.

    The value of a flag that is unknown, and similar to no known flag, is shown as "...".
    """
    texts = clean_words(each.word.text for each in left_over)
    of_nobody = False
    for each, text in zip(left_over, texts, strict=True):
        flag, equals, _ = text.partition("=")
        if each.flag:
            of_nobody = not each.releases and not each.near
            yield f"{flag}=..." if equals and of_nobody else text
        else:
            yield "..." if of_nobody else text
            of_nobody = False


def _edit(left_over: _Unrecognized, exact: bool) -> str:
    """Return the edit that mends a flag; "" if it depends on the release and ``exact`` is False:
    the release that runs is not known.
    """
    _, flag, releases, near = left_over
    where = left_over.word.origin
    if left_over.misspelt:
        return replaced(where, flag, near)
    if releases and not exact:
        return f"{at(where)} remove {flag}, or give --sglang-version if it is one of {releases}"
    if releases:
        return f"{at(where)} remove {flag}, or run one of SGLang {releases}"
    return f"{at(where)} correct or remove {flag}" if exact else ""


def _releases_of_refused(arguments: ParsedArguments) -> str:
    """Return the other releases that have the refused flag; "" if none has, or if this one has."""
    flag = _refused_flag(arguments)
    here = any(flag in row["flags"] for row in argument_table(arguments.version).rows)
    return "" if here or not flag.startswith("--") else _release_spans(flag)


def _refused_flag(arguments: ParsedArguments) -> str:
    return arguments.refused[0].text.partition("=")[0] if arguments.refused else ""


def _elsewhere(arguments: ParsedArguments) -> str:
    """Return the end of a message: the releases that take the refused flag; "" if none does."""
    named = _releases_of_refused(arguments)
    return f"; {_refused_flag(arguments)} is in {named}" if named else ""


def _release_spans(flag: str) -> str:
    return ", ".join(a if a == b else f"{a} to {b}" for a, b in releases_with(flag))


def _correction(server: SglangServer) -> str:
    """Return the edit that mends the parser's error; "" if no edit is known."""
    arguments = server.arguments
    if not arguments.refused:
        unnamed = not arguments.given("model_path")
        of_file = any(word.text == "--config" for word in arguments.argv)
        add = f"{at(server.command.origin)} add --model-path and the model's name or folder"
        return add if unnamed and not of_file else ""
    first, *rest = arguments.refused
    flag, equals, value = first.text.partition("=")
    rows = argument_table(arguments.version).rows
    meant = [row for row in rows if flag in row["flags"]] or [
        row for row in rows if any(name.startswith(flag) for name in row["flags"])
    ]
    if not 0 < len(meant) < 4:  # the message itself names many
        return ""
    if len(meant) > 1:  # the beginning of several
        edit = replaced(first.origin, flag, " or ".join(row["flags"][0] for row in meant))
        if releases := _releases_of_refused(arguments):
            run, give = f"run one of SGLang {releases}", "give --sglang-version if it is one of"
            edit = f"{edit}, or {run if arguments.exact else f'{give} {releases}'}"
        return edit
    row = meant[0]
    wrong = first._replace(text=value) if equals else rest[0] if rest else None
    if wrong is None or wrong.unresolved:
        return ""
    near = Spelling(0.6).nearest(wrong.text, map(str, row["choices"] or ()))
    if near:
        return replaced(wrong.origin, f"{flag} {wrong.text}", f"{flag} {near}")
    whole = f"{at(wrong.origin)} write a whole number behind {flag}, not {wrong.text}"
    return whole if row["kind"] == "int" else ""


@lru_cache(maxsize=4096)  # both rules ask, one for all servers after the other
def _all_releases_refuse(argv: tuple[Word, ...]) -> bool:
    """Return whether every known release refuses the arguments; all are tried."""
    return all(parse_sglang_arguments(argv, version).error for version in known_releases())


def _ranks(server: SglangServer) -> int:
    """Return the number of ranks.

    Raises:
        UnknownFactError: If a variable decides a number.
    """
    sizes = (server.number("tp_size"), server.number("pp_size"), server.replicas)
    return prod(require(size) for size in sizes)


def _number(server: SglangServer, name: str, default: int) -> int | None:
    """Return the number of a variable, ``default`` if it is not set; None if no number is known."""
    word = server.environment.get(name)
    if word is None or word.text == "":
        return default if word is None else None
    text = word.text.strip()
    return int(text) if not word.unresolved and text.isdecimal() and len(text) < 10 else None
