"""Rules about the flags of mooncake_master and mooncake_client, which end them when refused."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from preflight.processes.processes import Kind, LaunchProcess
from preflight.programs.mooncake_flags import (
    NEWEST,
    OLDEST,
    TRUE,
    Flag,
    Given,
    as_double,
    flags_of,
    read_flags,
)
from preflight.rules.rules import RuleSet, Seen, Severity

RULES = RuleSet()
_PROGRAMS = {Kind.MASTER: "mooncake_master", Kind.CLIENT: "mooncake_client"}
# rules_processes reports the switches of mooncake_client.
_SEEN_ELSEWHERE = frozenset(("enable_offload", "start_offload_rpc_server"))
# In most of the releases in use: that one of these is newer than the oldest is no news.
_COMMON_SINCE = frozenset(("0.3.8", "0.3.8.post1", "0.3.9", "0.3.10", "0.3.10.post2", "0.3.11"))
_FRACTIONS = (
    "eviction_ratio",
    "eviction_high_watermark_ratio",
    "nof_eviction_ratio",
    "nof_eviction_high_watermark_ratio",
    "offload_cap_ratio",
)
# A lifetime as master.cpp ValidateDurationFlag reads it.
_LIFETIMES = ("default_kv_lease_ttl", "default_kv_soft_pin_ttl", "max_kv_soft_pin_ttl")
_MOST_QUEUED = 100_000_000  # master.cpp, offloading_queue_limit
# master.cpp: seconds after which a put that was only started is discarded, and released.
_DISCARD_S, _RELEASE_S = 30, 600


def _flags(process: LaunchProcess) -> tuple[Mapping[str, Flag], list[Given]]:
    """What the program of ``process`` knows, and what it is given; nothing for other programs."""
    program = _PROGRAMS.get(process.kind)
    if program is None:
        return {}, []
    known = flags_of(program)
    return known, list(read_flags(process.arguments, known))


@RULES.launch(
    "mooncake-flags-refused",
    Severity.FAIL,
    "a flag of mooncake_master or mooncake_client with a value that it does not take",
    "it ends at once: exit code 1 and one line of gflags, or an abort (134) with an F line or an "
    "invalid_argument",
    "give the flag what the message names",
    "Mooncake master.cpp, master_service.cpp, real_client_main.cpp; gflags; seen by running "
    "0.3.13.post1 and 0.3.14",
)
def mooncake_flags_refused(processes: tuple[LaunchProcess, ...]) -> Iterator[Seen]:
    for process in processes:
        given = _flags(process)[1]
        for each in given:
            elsewhere = process.kind is Kind.CLIENT and each.name in _SEEN_ELSEWHERE
            if each.problem and each.flag is not None and not elsewhere:
                yield Seen(f"{process.kind.value}: {each.problem}", each.word.origin)
        if process.kind is Kind.MASTER:
            values = {each.name: each for each in given if not each.problem}
            for name, text in _master_refuses(values):
                yield Seen(f"{process.kind.value}: {text}", values[name].word.origin)


@RULES.launch(
    "mooncake-flag-unknown",
    Severity.WARN,
    "a flag of mooncake_master or mooncake_client that no known release has",
    "those end at once: exit code 1, ERROR: unknown command line flag; a newer one, or a build of "
    "one's own, may know it",
    "spell the flag as --help does",
    f"--helpfull of the releases {OLDEST} to {NEWEST}; gflags",
)
def mooncake_flag_unknown(processes: tuple[LaunchProcess, ...]) -> Iterator[Seen]:
    import difflib

    for process in processes:
        known, given = _flags(process)
        if any(each.name == "undefok" for each in given):
            continue
        for each in given:
            if each.flag is not None or not each.problem:
                continue
            near = difflib.get_close_matches(each.name, list(known), n=1, cutoff=0.75)
            hint = f": --{near[0]}?" if near else ""
            text = f"--{each.name}: no release from {OLDEST} to {NEWEST} has it{hint}"
            yield Seen(f"{process.kind.value}: {text}", each.word.origin)


def _master_refuses(values: Mapping[str, Given]) -> Iterator[tuple[str, str]]:
    """The flag, and what the master says of its value, or of it and another."""

    def text(name: str) -> str | None:
        return values[name].value if name in values else None

    for name in _FRACTIONS:
        number = as_double(text(name) or "")
        if number is not None and not 0 <= number <= 1 and number == number:
            yield name, f"--{name}={text(name)}: it must be between 0.0 and 1.0"
    for name in _LIFETIMES:
        lifetime = text(name)
        if lifetime is not None and not re.fullmatch(r"\d+(?:ms|s|m|h)?", lifetime):
            yield name, f"--{name}={lifetime}: a whole number, and ms, s, m or h behind it"
    queued = _whole(text("offloading_queue_limit"))
    if queued is not None and not 0 < queued <= _MOST_QUEUED:
        yield "offloading_queue_limit", f"--offloading_queue_limit={queued}: 1 to {_MOST_QUEUED}"
    allocator = text("memory_allocator")
    if allocator is not None and allocator not in ("cachelib", "offset"):
        yield "memory_allocator", f"--memory_allocator={allocator}: must be cachelib or offset"
    path = text("config_path")
    if path and not path.endswith((".json", ".yaml", ".yml")):
        yield "config_path", f"--config_path={path}: Unsupported config file format: json or yaml"
    if "config_path" not in values and "flagfile" not in values:
        yield from _together(values)


def _together(values: Mapping[str, Given]) -> Iterator[tuple[str, str]]:
    """What flags say against each other, where no file says more."""

    def is_on(name: str) -> bool:
        return name in values and (values[name].value or "").lower() in TRUE

    said = [values[name].value for name in ("ha_backend_connstring",) if name in values]
    backend = values["ha_backend_type"].value if "ha_backend_type" in values else "etcd"
    if backend == "etcd" and "etcd_endpoints" in values:
        said.append(values["etcd_endpoints"].value)
    # None is a variable that may name one.
    if is_on("enable_ha") and all(value == "" for value in said):
        text = "--enable_ha without --etcd_endpoints or --ha_backend_connstring: it must be set"
        yield "enable_ha", text
    if is_on("enable_oplog") and not ("enable_ha" in values and values["enable_ha"].value is None):
        if not is_on("enable_ha"):
            yield "enable_oplog", "enable_oplog requires enable_ha=true"
        elif backend not in ("etcd", None):
            yield "enable_oplog", f"enable_oplog requires ha_backend_type=etcd, not {backend}"
    names = "put_start_release_timeout_sec", "put_start_discard_timeout_sec"
    release, discard = (
        _whole(values[name].value) if name in values else default
        for name, default in zip(names, (_RELEASE_S, _DISCARD_S), strict=True)
    )
    if release is not None and discard is not None and release <= discard:
        name = names[0] if names[0] in values else names[1]
        yield name, f"{names[0]} ({release} s) must be larger than {names[1]} ({discard} s)"


def _whole(text: str | None) -> int | None:
    """A value that gflags took as a whole number."""
    if text is None:
        return None
    return int(text, 16) if "x" in text.lower() else int(text)


@RULES.launch(
    "mooncake-switch-is-on",
    Severity.WARN,
    "a switch of mooncake_master or mooncake_client with its value as the next word",
    "the switch is on, whatever the word says: gflags reads its value after = alone and passes "
    "the word over",
    "write --enable_offload=false, or --noenable_offload",
    "gflags ParseNewCommandLineFlags; seen by running mooncake_master --enable_ha false",
)
def mooncake_switch_is_on(processes: tuple[LaunchProcess, ...]) -> Iterator[Seen]:
    for process in processes:
        for each in _flags(process)[1]:
            if each.passed_over and each.passed_over.lower() not in TRUE:
                text = f"--{each.name} {each.passed_over} is read as --{each.name}=true"
                yield Seen(f"{process.kind.value}: {text}", each.word.origin)


@RULES.launch(
    "mooncake-flag-of-some-releases",
    Severity.NOTE,
    "a flag of mooncake_master or mooncake_client that only some releases have",
    "any other release ends at once: ERROR: unknown command line flag",
    "compare with the release that is installed (mooncake_master --version, pip show)",
    f"--helpfull of the releases {OLDEST} to {NEWEST}",
)
def mooncake_flag_of_some_releases(processes: tuple[LaunchProcess, ...]) -> Iterator[Seen]:
    for process in processes:
        for each in _flags(process)[1]:
            flag = each.flag
            if flag is None or not (flag.until or flag.since):
                continue
            if not flag.until and flag.since in _COMMON_SINCE:
                continue
            until = f"to {flag.until}" if flag.until else "on"
            text = f"--{each.name} is there from {flag.since} {until}"
            yield Seen(f"{process.kind.value}: {text}", each.word.origin)
