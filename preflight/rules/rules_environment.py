"""Rules about environment variables: misspelt, without effect, or in the way."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache

from preflight.base.data_file import data_file
from preflight.launches.source import Word
from preflight.processes.processes import Kind, LaunchProcess, SglangServer
from preflight.rules.rules import RuleSet, Seen, Severity

RULES = RuleSet()
PREFIXES = ("MC_", "MOONCAKE_", "SGLANG_")
_PROXIES = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")
_ADDRESS = re.compile(r"(?:https?|etcd)://[^ =]+")


@RULES.launch(
    "variable-misspelt",
    Severity.WARN,
    "an MC_*, MOONCAKE_* or SGLANG_* variable that nothing reads",
    "it has no effect, and the default holds",
    "spell it as its reader does",
    "the names that Mooncake and SGLang read, data/known_environment.txt",
)
def variable_misspelt(processes: tuple[LaunchProcess, ...]) -> Iterator[Seen]:
    known: frozenset[str] | None = None
    told: set[str] = set()
    for process in processes:
        for name, word in process.command.environment.items():
            if not name.startswith(PREFIXES) or name in told:
                continue
            if known is None:
                known = known_variables()
            if name not in known:
                told.add(name)
                near = nearest_variable(name, known)
                hint = f": {near} is meant?" if near else ""
                yield Seen(f"{name}: neither Mooncake nor SGLang reads it{hint}", word.origin)


@RULES.server(
    "local-buffer-ignored",
    Severity.WARN,
    "MOONCAKE_LOCAL_BUFFER_SIZE for an SGLang server",
    "SGLang sets up its store with 16 MiB whatever it says",
    "drop it; the local buffer is not used for SGLang's zero-copy transfers",
    "SGLang 0.5.23 mooncake_store.py DEFAULT_LOCAL_BUFFER_SIZE",
)
def local_buffer_ignored(server: SglangServer) -> Iterator[Seen]:
    word = server.environment.get("MOONCAKE_LOCAL_BUFFER_SIZE")
    if word and server.store:
        yield Seen(f"MOONCAKE_LOCAL_BUFFER_SIZE={word.text} has no effect on SGLang", word.origin)


@RULES.launch(
    "proxy-in-the-way",
    Severity.WARN,
    "an HTTP proxy in the environment of a process that talks HTTP inside the cluster",
    "metadata and health requests go to the proxy; CIDR entries in no_proxy are not understood",
    "unset it, or list the hosts literally in no_proxy",
    "Mooncake troubleshooting guide; SGLang #28503",
)
def proxy_in_the_way(processes: tuple[LaunchProcess, ...]) -> Iterator[Seen]:
    for process in processes:
        environment = process.command.environment
        found = [name for name in _PROXIES if name in environment and environment[name].text]
        peers = _peers(process) if found else ()
        skipped = _text(environment, "no_proxy") or _text(environment, "NO_PROXY")
        reached = None if peers is None else [host for host in peers if not _skips(skipped, host)]
        if reached == [] or _skips(skipped, "*"):
            continue
        hosts = f": {', '.join(reached)} is not in it" if reached else ""
        start = f"{process.kind.value} starts with {', '.join(found)}"
        yield Seen(f"{start}, no_proxy is {skipped!r}{hosts}", process.command.origin)


@lru_cache(maxsize=1)
def known_variables() -> frozenset[str]:
    """Every name that Mooncake or SGLang reads from the environment."""
    path = data_file("known_environment.txt")
    with open(path, encoding="utf-8") as file:
        return frozenset(line.strip() for line in file if not line.startswith("#"))


def nearest_variable(name: str, known: frozenset[str]) -> str | None:
    """The name that a misspelt one most likely stands for, if any is near."""
    import difflib

    prefix = name.partition("_")[0]
    candidates = [candidate for candidate in known if candidate.startswith(prefix)]
    near = difflib.get_close_matches(name, candidates, n=1, cutoff=0.8)
    return near[0] if near else None


def _text(environment: Mapping[str, Word], name: str) -> str:
    return environment[name].text if name in environment else ""


def _peers(process: LaunchProcess) -> tuple[str, ...] | None:
    """The hosts that a process talks to, as its settings name them; None where they do not."""
    addresses: list[object] = []
    if process.server is not None:
        store = process.server.store
        if store is None or process.server.mode != "null":
            return None  # disaggregation finds its peers at run time
        addresses = [store.value("master_server_address"), store.value("metadata_server")]
    elif process.store is not None:
        addresses = [process.store.master, process.store.metadata]
    elif process.kind in (Kind.MASTER, Kind.ROUTER):
        texts = [_ADDRESS.search(word.text) for word in process.arguments]
        addresses = [found.group() for found in texts if found]
    named = [address for address in addresses if isinstance(address, str)]
    if len(named) < len([address for address in addresses if address is not None]):
        return None
    hosts = [host for address in named for host in _hosts(address)]
    return tuple(dict.fromkeys(hosts))


def _hosts(address: str) -> Iterator[str]:
    """The hosts of ``a:1``, ``http://a:1/metadata`` or ``etcd://a:1;b:1``."""
    if address == "P2PHANDSHAKE":
        return
    for part in re.split("[;,]", address.partition("://")[2] or address):
        host = part.partition("/")[0]
        host = host.rpartition("]")[0].lstrip("[") if "]" in host else host.partition(":")[0]
        if host:
            yield host


def _skips(no_proxy: str, host: str) -> bool:
    """Whether a client asks ``host`` itself: named in full, by its domain, or by a star."""
    for entry in no_proxy.split(","):
        name = entry.strip().partition(":")[0].lstrip(".")
        if name == "*" or (name and (host == name or host.endswith(f".{name}"))):
            return True
    return False
