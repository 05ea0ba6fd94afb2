"""Rules about SGLang's HiCache flags: what is not switched on, not per host, or not combined."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from checks.base.unknown import Unknown
from preflight.launches.source import Word
from preflight.processes.processes import LaunchProcess, SglangServer
from preflight.programs.sglang_argument_tables import known_releases, releases_with
from preflight.programs.sglang_arguments import parse_sglang_arguments
from preflight.rules.rules import RuleSet, Seen, Severity

RULES = RuleSet()
_HOOK = "SGLang 0.5.23 arg_groups/hicache_hook.py"
_POOL = "SGLang 0.5.23 mem_cache/pool_host/base.py"
_ARGUMENTS = "SGLang's own argparse declarations, 0.5.2 to 0.5.23, release by release"


@RULES.server(
    "arguments-refused",
    Severity.FAIL,
    "a command line that SGLang's argument parser refuses",
    "the server prints its usage and ends with exit code 2",
    "correct the argument that the message names",
    _ARGUMENTS,
)
def arguments_refused(server: SglangServer) -> Iterator[Seen]:
    arguments = server.arguments
    if arguments.error and (arguments.exact or _every_release_refuses(server)):
        yield Seen(f"sglang serve: error: {arguments.error}")
    words = [word for word in arguments.unrecognized if _is_known(word)]
    if arguments.exact and words:
        yield Seen(_unrecognized(words, arguments.version), words[0].origin)


@RULES.server(
    "argument-unknown",
    Severity.WARN,
    "an argument that the SGLang that was assumed does not have",
    "that release refuses it; another may know it",
    "check the spelling against the SGLang that runs, or name it with --sglang-version",
    _ARGUMENTS,
)
def argument_unknown(server: SglangServer) -> Iterator[Seen]:
    arguments = server.arguments
    if arguments.exact:
        return
    if arguments.error and not _every_release_refuses(server):
        yield Seen(f"SGLang {arguments.version} says: error: {arguments.error}")
    words = [
        word for word in arguments.unrecognized if word.text.startswith("-") and _is_known(word)
    ]
    if words:
        yield Seen(_unrecognized(words, arguments.version), words[0].origin)


def _is_known(word: Word) -> bool:
    """Whether it is known to be no argument: a flag is, whatever its value."""
    flag = word.text.partition("=")[0]
    return not word.unresolved or (flag.startswith("-") and "$" not in flag and "`" not in flag)


def _unrecognized(words: list[Word], version: str) -> str:
    """SGLang's own words, and which releases have such flags."""
    together = " ".join(word.text for word in words)
    said = [f"sglang serve: error: unrecognized arguments: {together} (SGLang {version})"]
    for word in words:
        flag = word.text.partition("=")[0]
        spans = releases_with(flag) if flag.startswith("--") else ()
        named = ", ".join(a if a == b else f"{a} to {b}" for a, b in spans)
        if named:
            said.append(f"{flag} is in {named}")
    return "; ".join(said)


def _every_release_refuses(server: SglangServer) -> bool:
    """Whether no release that is known takes these arguments; asked only where one refuses."""
    return _refused_by_all(server.arguments.words)


@lru_cache(maxsize=8)  # both rules ask
def _refused_by_all(words: tuple[Word, ...]) -> bool:
    return all(parse_sglang_arguments(words, version).error for version in known_releases())


@RULES.server(
    "hicache-not-enabled",
    Severity.WARN,
    "--hicache-* flags without --enable-hierarchical-cache",
    "there is no host cache and no storage, and no message says so",
    "add --enable-hierarchical-cache",
    f"{_HOOK} and registry.py",
)
def hicache_not_enabled(server: SglangServer) -> Iterator[Seen]:
    if server.hicache or server.value("disaggregation_decode_enable_offload_kvcache") is True:
        return
    # A decode server reads them for the host pool in which it keeps retracted requests.
    if server.mode == "decode":
        return
    given = [
        name
        for name in server.arguments.settings
        if name.startswith("hicache_") and server.arguments.given(name)
    ]
    if given:
        flags = ", ".join("--" + name.replace("_", "-") for name in given)
        yield Seen(f"{flags}: without --enable-hierarchical-cache nothing reads them")


@RULES.server(
    "hicache-size-per-rank",
    Severity.NOTE,
    "--hicache-size with several ranks",
    "it is 10^9 bytes for each rank, not for the host",
    "read it times the ranks of the host",
    f"{_POOL}; seen by running it",
)
def hicache_size_per_rank(server: SglangServer) -> Iterator[Seen]:
    size, ranks = server.value("hicache_size"), _ranks(server)
    if server.hicache and isinstance(size, int) and size > 0 and ranks is not None and ranks > 1:
        yield Seen(f"--hicache-size {size} is {size} x 10^9 bytes for each of {ranks} ranks")


@RULES.server(
    "hicache-size-unset",
    Severity.WARN,
    "a --hicache-size that counts as not given, or a ratio that leaves no pool",
    "a size of 0 or less means 'not set'; a ratio of 0 makes a pool of one page, one below 0 fails",
    "give a positive size or ratio",
    f"{_HOOK} and {_POOL}; seen by running it",
)
def hicache_size_unset(server: SglangServer) -> Iterator[Seen]:
    size, ratio = server.value("hicache_size"), server.value("hicache_ratio")
    if isinstance(size, int) and size < 0:
        yield Seen(f"--hicache-size {size}: taken as not set, --hicache-ratio decides")
    if isinstance(ratio, float) and ratio <= 0 and not _positive(size):
        what = "a pool of one page" if ratio == 0 else "OverflowError at start"
        yield Seen(f"--hicache-ratio {ratio:g}: {what}")


@RULES.server(
    "page-size-one",
    Severity.WARN,
    "the Mooncake store with a KV page of one token",
    "two objects for each token and rank: slow, and millions of keys in the master",
    "add --page-size 64",
    "SGLang 0.5.23 arg_groups/overrides.py: 1 is the default on CUDA",
)
def page_size_one(server: SglangServer) -> Iterator[Seen]:
    if server.store is None:
        return
    given = server.arguments.given("page_size")
    if server.value("page_size") == 1:
        yield Seen("--page-size 1 with the Mooncake store")
    elif not given:
        yield Seen("no --page-size: 1 on CUDA, unless the model or attention backend sets its own")


@RULES.server(
    "layout-rewritten",
    Severity.NOTE,
    "a host memory layout that SGLang changes",
    "the layout that runs is not the one given",
    "page_first goes with the kernel I/O backend, page_first_direct with direct",
    _HOOK,
)
def layout_rewritten(server: SglangServer) -> Iterator[Seen]:
    if not server.hicache:
        return
    layout, backend = server.value("hicache_mem_layout"), server.value("hicache_io_backend")
    if layout == "page_first_direct" and backend == "kernel":
        yield Seen("page_first_direct with the kernel I/O backend: direct is used")
    elif layout == "page_first" and backend == "direct":
        yield Seen("page_first with the direct I/O backend: page_first_direct is used")
    elif layout == "layer_first" and server.store is not None:
        yield Seen("layer_first with the Mooncake store: page_first or page_first_direct is used")


@RULES.server(
    "attach-at-runtime",
    Severity.WARN,
    "a server to which a storage backend can be attached later, set up as attaching cannot change",
    "attaching skips what a start adjusts: with layer_first an MHA model's transfers fail in the "
    "background, and standalone storage is refused",
    "name --hicache-storage-backend at the start, or use page_first and embedded clients",
    "SGLang 0.5.23 unified_cache/storage_attachment.py, mooncake_store.py _get_mha_buffer_meta",
)
def attach_at_runtime(server: SglangServer) -> Iterator[Seen]:
    attached = server.hicache and server.value("hicache_storage_backend") is None
    if not attached or server.value("admin_api_key") is None:
        return
    if server.value("hicache_mem_layout") == "layer_first":
        yield Seen("--admin-api-key allows attaching; --hicache-mem-layout layer_first stays")
    word = server.environment.get("MOONCAKE_STANDALONE_STORAGE")
    if word is not None and word.text.strip().lower() in ("1", "true", "yes", "y"):
        text = "the host pool is not Mooncake's, which standalone storage needs"
        yield Seen(f"MOONCAKE_STANDALONE_STORAGE={word.text}: {text}", word.origin)


@RULES.server(
    "storage-needs-other-kv-type",
    Severity.FAIL,
    "--kv-cache-dtype mxfp8 with a storage backend",
    "NotImplementedError at the first page that is stored, not at start",
    "use another KV type, or no storage backend",
    "SGLang 0.5.23 mem_cache/pool_host/mha_mxfp8.py",
)
def storage_needs_other_kv_type(server: SglangServer) -> Iterator[Seen]:
    stores = server.hicache and server.value("hicache_storage_backend") is not None
    if stores and server.value("kv_cache_dtype") == "mxfp8":
        yield Seen("--kv-cache-dtype mxfp8 with --hicache-storage-backend")


@RULES.server(
    "tp-lcm-size-ignored",
    Severity.WARN,
    "tp_lcm_size without the page_head layout",
    "nothing reads it",
    "use --hicache-mem-layout page_head, or drop it",
    "SGLang 0.5.23 managers/cache_controller.py",
)
def tp_lcm_size_ignored(server: SglangServer) -> Iterator[Seen]:
    if server.store and "tp_lcm_size" in server.store.extra:
        layout = server.value("hicache_mem_layout")
        if layout != "page_head":
            yield Seen(f"tp_lcm_size in the extra config with the layout {layout}")


@RULES.server(
    "prefetch-best-effort",
    Severity.NOTE,
    "a prefetch policy that gives up when the request is scheduled",
    "pages that the store holds are computed again under load",
    "use --hicache-storage-prefetch-policy timeout",
    "SGLang 0.5.23 mem_cache/unified_radix_cache.py",
)
def prefetch_best_effort(server: SglangServer) -> Iterator[Seen]:
    if server.store and server.value("hicache_storage_prefetch_policy") == "best_effort":
        yield Seen("--hicache-storage-prefetch-policy best_effort")


@RULES.server(
    "max-total-tokens-bounds",
    Severity.NOTE,
    "--max-total-tokens with a ratio",
    "it is an upper bound: above what the GPU holds it is lowered, and the host pool with it",
    "take the pool computed from it as the most that it can be",
    "SGLang 0.5.23 mem_cache/kv_cache_configurator.py",
)
def max_total_tokens_bounds(server: SglangServer) -> Iterator[Seen]:
    tokens = server.value("max_total_tokens")
    if server.hicache and isinstance(tokens, int) and not _positive(server.value("hicache_size")):
        yield Seen(f"--max-total-tokens {tokens} bounds the host pool from above")


@RULES.server(
    "sglang-hugepages-ignored",
    Severity.WARN,
    "SGLANG_HUGEPAGE_SIZE with the Mooncake store",
    "the host pool then comes from Mooncake, which reads MC_STORE_USE_HUGEPAGE instead",
    "export MC_STORE_USE_HUGEPAGE=1 and MC_STORE_HUGEPAGE_SIZE",
    "SGLang 0.5.23 mem_cache/pool_host/common.py; seen by running it",
)
def sglang_hugepages_ignored(server: SglangServer) -> Iterator[Seen]:
    word = server.environment.get("SGLANG_HUGEPAGE_SIZE")
    if word and server.store:
        yield Seen(f"SGLANG_HUGEPAGE_SIZE={word.text} has no effect", word.origin)


@RULES.server(
    "sglang-hugepage-size-refused",
    Severity.WARN,
    "an SGLANG_HUGEPAGE_SIZE other than 2MB or 1GB",
    "SGLang warns and uses 4 KiB pages",
    "write 2MB or 1GB",
    "SGLang 0.5.23 mem_cache/storage/mmap/mmap_allocator.py; seen by running it",
)
def sglang_hugepage_size_refused(server: SglangServer) -> Iterator[Seen]:
    word = server.environment.get("SGLANG_HUGEPAGE_SIZE")
    if word is None or word.unresolved or server.store:
        return
    if word.text.strip().upper() not in ("2MB", "1GB", ""):
        yield Seen(f"SGLANG_HUGEPAGE_SIZE={word.text}", word.origin)


@RULES.server(
    "register-chunk-ignored",
    Severity.WARN,
    "SGLANG_HICACHE_HOST_REGISTER_CHUNK_GB with a layout that is registered whole",
    "nothing reads it for layer_first and page_head",
    "use page_first or page_first_direct",
    "SGLang 0.5.23 mem_cache/pool_host/common.py; seen by running it",
)
def register_chunk_ignored(server: SglangServer) -> Iterator[Seen]:
    word = server.environment.get("SGLANG_HICACHE_HOST_REGISTER_CHUNK_GB")
    layout = server.value("hicache_mem_layout")
    if word and server.hicache and layout in ("layer_first", "page_head"):
        yield Seen(f"SGLANG_HICACHE_HOST_REGISTER_CHUNK_GB with the layout {layout}", word.origin)


@RULES.launch(
    "gate-assumes-one-engine",
    Severity.WARN,
    "several engines on one host, each of which claims all of its memory",
    "SGLang's check of host memory divides by the ranks of one engine alone: each passes, and "
    "together they run out of memory later",
    "add their pools up, and leave --hicache-ratio to none of them",
    f"{_POOL} ranks_per_host",
)
def gate_assumes_one_engine(processes: tuple[LaunchProcess, ...]) -> Iterator[Seen]:
    servers = [process.server for process in processes if process.server and process.server.hicache]
    if len(servers) > 1:
        places = ", ".join(str(server.command.origin) for server in servers)
        yield Seen(f"{len(servers)} servers with HiCache in one source: {places}")
    for server in servers:
        replicas = server.replicas
        if isinstance(replicas, int) and replicas > 1:
            yield Seen(f"{replicas} data-parallel replicas with HiCache", server.command.origin)


def _ranks(server: SglangServer) -> int | None:
    sizes = [server.number("tp_size"), server.number("pp_size"), server.replicas]
    total = 1
    for size in sizes:
        if isinstance(size, Unknown):
            return None
        total *= size
    return total


def _positive(size: Any) -> bool:
    return isinstance(size, int) and size > 0
