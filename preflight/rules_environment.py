"""Rules about environment variables: misspelt, without effect, or in the way."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping

from preflight.launch_processes import Kind, LaunchProcess, SglangServer
from preflight.launch_source import Word
from preflight.rules import RuleSet, Seen, Severity

RULES = RuleSet()
PREFIXES = ("MC_", "MOONCAKE_", "SGLANG_")
_PROXIES = ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "all_proxy", "ALL_PROXY")


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
    "force-tcp-is-presence",
    Severity.WARN,
    "a switch that counts as on whatever its value",
    "0 and the empty text turn it on too",
    "unset it to turn it off",
    "Mooncake transfer_engine_impl.cpp, config.cpp: getenv alone; seen by running it",
)
def force_tcp_is_presence(processes: tuple[LaunchProcess, ...]) -> Iterator[Seen]:
    names = ("MC_FORCE_TCP", "MC_FORCE_HCA", "MC_USE_IPV6", "MC_DISABLE_METACACHE", "MC_USE_TENT")
    for name, word in _once(processes, names):
        if word.text.strip().lower() in ("", "0", "false", "no", "off"):
            yield Seen(f"{name}={word.text}: counts as on", word.origin)


@RULES.launch(
    "number-misread",
    Severity.WARN,
    "a Mooncake number with a unit or a text",
    "leading digits are read and the rest is dropped; a text is 0",
    "write a plain number",
    "Mooncake config.cpp: atoi, atoll; MC_MAX_MR_SIZE=16MB was seen to register 16-byte regions",
)
def number_misread(processes: tuple[LaunchProcess, ...]) -> Iterator[Seen]:
    for name, word in _once(processes, _C_NUMBERS):
        text = word.text.strip()
        if text and not word.unresolved and not text.lstrip("+-").isdecimal():
            digits = "".join(_leading_digits(text)) or "0"
            yield Seen(f"{name}={word.text}: Mooncake reads {digits}", word.origin)


@RULES.launch(
    "offload-buffer-misread",
    Severity.WARN,
    "MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES that is no plain number of bytes",
    "with a suffix the default of 1.25 GiB is taken; 0 ends the process with a segmentation fault",
    "write plain bytes, such as 21474836480",
    "Mooncake environ.cpp; seen by running it",
)
def offload_buffer_misread(processes: tuple[LaunchProcess, ...]) -> Iterator[Seen]:
    for name, word in _once(processes, ("MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES",)):
        text = word.text.strip().removeprefix("+")
        if word.unresolved:
            continue
        if not text.isdecimal():
            yield Seen(f"{name}={word.text}: 1342177280 bytes are taken", word.origin)
        elif int(text[:20]) == 0:
            yield Seen(f"{name}={word.text}: a segmentation fault at start", word.origin)


@RULES.server(
    "offload-without-switch",
    Severity.WARN,
    "an SSD offload path without enable_ssd_offload",
    "the path is passed on and offload stays off",
    "export MOONCAKE_ENABLE_SSD_OFFLOAD=1",
    "SGLang 0.5.23 mooncake_store.py",
)
def offload_without_switch(server: SglangServer) -> Iterator[Seen]:
    store = server.store
    path = store.value("ssd_offload_path") if store else None
    if store and isinstance(path, str) and path and store.value("enable_ssd_offload") is False:
        yield Seen(f"ssd_offload_path is set ({store.settings['ssd_offload_path'].origin})")


@RULES.launch(
    "offload-one-sided",
    Severity.FAIL,
    "SSD offload in a client whose master does not offer it",
    "setup ends with -1300 (UNABLE_OFFLOAD)",
    "start mooncake_master with --enable_offload=true",
    "Mooncake real_client.cpp; seen by running it",
)
def offload_one_sided(processes: tuple[LaunchProcess, ...]) -> Iterator[Seen]:
    masters = [process for process in processes if process.kind is Kind.MASTER]
    if not masters or any(_offers_offload(master) for master in masters):
        return
    for process in processes:
        store = process.server.store if process.server else None
        embedded = store is not None and store.value("enable_ssd_offload") is True
        if embedded or (process.kind is Kind.CLIENT and _offers_offload(process)):
            yield Seen(f"{process.name} offloads, the master does not", process.command.origin)


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
        if process.kind in (Kind.OTHER, Kind.BENCHMARK):
            continue
        environment = process.command.environment
        found = [name for name in _PROXIES if name in environment and environment[name].text]
        if found:
            skipped = _text(environment, "no_proxy") or _text(environment, "NO_PROXY")
            text = f"{process.kind.value} starts with {', '.join(found)}, no_proxy is {skipped!r}"
            yield Seen(text, process.command.origin)


_C_NUMBERS = (
    "MC_GID_INDEX",
    "MC_IB_PORT",
    "MC_MTU",
    "MC_MAX_MR_SIZE",
    "MC_NUM_QP_PER_EP",
    "MC_NUM_CQ_PER_CTX",
    "MC_MAX_CQE_PER_CTX",
    "MC_MAX_EP_PER_CTX",
    "MC_MAX_WR",
    "MC_MAX_SGE",
    "MC_MAX_INLINE",
    "MC_WORKERS_PER_CTX",
    "MC_SLICE_SIZE",
    "MC_RETRY_CNT",
    "MC_HANDSHAKE_PORT",
    "MC_MIN_RPC_PORT",
    "MC_MAX_RPC_PORT",
)


def known_variables() -> frozenset[str]:
    """Every name that Mooncake or SGLang reads from the environment."""
    path = os.path.join(os.path.dirname(__file__), "data", "known_environment.txt")
    with open(path, encoding="utf-8") as file:
        return frozenset(line.strip() for line in file if not line.startswith("#"))


def nearest_variable(name: str, known: frozenset[str]) -> str | None:
    """The name that a misspelt one most likely stands for, if any is near."""
    import difflib

    prefix = name.partition("_")[0]
    candidates = [candidate for candidate in known if candidate.startswith(prefix)]
    near = difflib.get_close_matches(name, candidates, n=1, cutoff=0.8)
    return near[0] if near else None


def _once(
    processes: tuple[LaunchProcess, ...], names: tuple[str, ...]
) -> Iterator[tuple[str, Word]]:
    """Each setting of one of ``names``, once for each place where it is written."""
    seen = set()
    for process in processes:
        for name in names:
            word = process.command.environment.get(name)
            if word is not None and (name, word) not in seen:
                seen.add((name, word))
                yield name, word


def _leading_digits(text: str) -> Iterator[str]:
    for character in text.removeprefix("+"):
        if not character.isdecimal():
            return
        yield character


def _offers_offload(process: LaunchProcess) -> bool:
    for word in process.arguments:
        name, equals, value = word.text.lstrip("-").partition("=")
        if name == "enable_offload":
            return not equals or value.strip().lower() in ("true", "1", "t", "yes", "y")
    return False


def _text(environment: Mapping[str, Word], name: str) -> str:
    return environment[name].text if name in environment else ""
