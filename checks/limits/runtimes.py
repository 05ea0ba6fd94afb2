"""The RLIMIT_MEMLOCK that a container runtime, a service or a login would hand on.

A container without a limit of its own has that of the daemon that starts it; a service has its
unit's ``LimitMEMLOCK``, else systemd's ``DefaultLimitMEMLOCK``; a login has what pam_limits sets.
Sources: systemd.exec(5), systemd.unit(5), systemd-system.conf(5), limits.conf(5), slurm.conf(5).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from checks.base.root import Root
from checks.base.units import MIB
from checks.base.unknown import Unknown, known, or_unknown

# Where units and their drop-ins lie, the strongest folder first.
UNIT_FOLDERS = ("/etc/systemd/system", "/run/systemd/system", "/lib/systemd/system")
RUNTIME_UNITS = ("containerd", "docker", "crio", "slurmd")
# The process of each unit, where they differ.
DAEMON_OF_UNIT = {"docker": "dockerd"}
DOCKER_CONFIG = "/etc/docker/daemon.json"
PAM_FOLDER = "/etc/security/limits.d"
SLURM_CONFIGS = ("/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf")
_SUFFIXES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50}
# limits.conf(5): memlock is in KiB.
_PAM_UNIT_BYTES = 1024


def runtime_units(runtime: str) -> tuple[str, ...]:
    """Return the daemons, one of which hands its limit to a container that sets none of its own."""
    # Docker's containers are children of containerd's shims; a dockerd without containerd.service
    # starts a containerd of its own, which has dockerd's limit.
    return ("containerd", "crio") if runtime == "kubernetes" else ("containerd", "docker")


class Limit(NamedTuple):
    """A resource limit, in its own unit (bytes, files, processes); None: unlimited."""

    soft: int | None
    hard: int | None


class Daemon(NamedTuple):
    """A running daemon's own limits, which it hands on to what it starts."""

    memlock: Limit | Unknown
    nofile: Limit | Unknown


class UnitLimit(NamedTuple):
    """A daemon that starts containers or jobs.

    running: its process's limits, None where it does not run or was not seen. configured: what its
    unit says of memlock, None where it says nothing. source: the file that says so, or "".
    """

    name: str
    running: Daemon | None
    configured: Limit | Unknown | None
    source: str


class PamLimit(NamedTuple):
    """One memlock row of limits.conf. domain: a user, ``@group`` or ``*``. kind: soft, hard, -."""

    domain: str
    kind: str
    bytes: int | None
    source: str


# systemd-system.conf(5), DefaultLimitMEMLOCK= where nobody sets it (8M since version 250).
SYSTEMD_MEMLOCK = Limit(8 * MIB, 8 * MIB)


class RuntimeLimits(NamedTuple):
    """What is handed on. docker_default: daemon.json's ``default-ulimits``, None without.

    userns_remap: daemon.json's, "" without. slurm_propagates: whether jobs inherit the memlock of
    the shell that submits them, None without Slurm. systemd_default: ``DefaultLimitMEMLOCK``.
    """

    units: tuple[UnitLimit, ...]
    docker_default: Limit | Unknown | None
    userns_remap: str | Unknown
    systemd_default: Limit | Unknown | None
    pam: tuple[PamLimit, ...] | Unknown
    slurm_propagates: bool | Unknown | None

    def unit(self, name: str) -> UnitLimit | None:
        return next((unit for unit in self.units if unit.name == name), None)


def read_runtime_limits(root: Root, daemons: Mapping[str, Daemon] | Unknown) -> RuntimeLimits:
    """All that is visible below ``root``; ``daemons``: the limits of those that run, by name."""
    docker_default, userns_remap = _docker(root)
    return RuntimeLimits(
        units=tuple(_units(root, {} if isinstance(daemons, Unknown) else daemons)),
        docker_default=docker_default,
        userns_remap=userns_remap,
        systemd_default=_systemd_default(root),
        pam=_pam(root),
        slurm_propagates=_slurm(root),
    )


def parse_limit(text: str) -> int | Unknown | None:
    """``unlimited``, ``infinity`` or a number with K, M, G, T (of 1024), as all of these write."""
    word = text.strip()
    if word in ("unlimited", "infinity", "-1"):
        return None
    digits = word.rstrip("KMGTP")
    suffix = word[len(digits) :]
    # isdecimal alone takes digits of other scripts too, and int() refuses very long ones.
    if not digits.isascii() or not digits.isdecimal() or len(digits) > 20:
        return Unknown(f"not a limit: {word[:40]!r}")
    if suffix not in _SUFFIXES:
        return Unknown(f"not a limit: {word[:40]!r}")
    return int(digits) * _SUFFIXES[suffix]


@or_unknown
def limit_of_file(content: str | Unknown, name: str, source: str) -> Limit | Unknown:
    """The row ``name`` of a ``/proc/PID/limits``."""
    content = known(content)
    for line in content.splitlines():
        if line.startswith(name):
            words = line[len(name) :].split()
            if len(words) >= 2:
                return _limit(words[0], words[1], source)
    return Unknown(f"{source}: has no row {name!r}")


def limit_of_words(words: object, source: str) -> Limit | Unknown:
    """A pair of words, soft and hard, as a call hands them over."""
    if not isinstance(words, list) or len(words) != 2:
        return Unknown(f"{source}: has no pair of limits")
    return _limit(str(words[0]), str(words[1]), source)


def _limit(soft: str, hard: str, source: str) -> Limit | Unknown:
    parsed = parse_limit(soft), parse_limit(hard)
    for value in parsed:
        if isinstance(value, Unknown):
            return Unknown(f"{source}: {value.reason}")
    first, second = parsed
    assert not isinstance(first, Unknown)
    assert not isinstance(second, Unknown)
    return Limit(first, second)


def _units(root: Root, daemons: Mapping[str, Daemon]) -> Iterator[UnitLimit]:
    for name in RUNTIME_UNITS:
        running = daemons.get(DAEMON_OF_UNIT.get(name, name))
        contents = list(_unit_files(root, f"{name}.service"))
        if running is None and not contents:
            continue
        configured, source = _last_setting(contents, "LimitMEMLOCK")
        yield UnitLimit(name, running, configured, source)


def _unit_files(root: Root, unit: str) -> Iterator[tuple[str, str]]:
    """(path, content) of the unit's file and its drop-ins, in the order in which systemd reads."""
    for folder in UNIT_FOLDERS:
        content = root.text(f"{folder}/{unit}")
        if not isinstance(content, Unknown):
            yield f"{folder}/{unit}", content
            break
    yield from _drop_ins(root, [f"{folder}/{unit}.d" for folder in UNIT_FOLDERS])


def _drop_ins(root: Root, folders: list[str]) -> Iterator[tuple[str, str]]:
    """Sorted by name over all folders; the same name in a stronger folder hides the weaker."""
    paths: dict[str, str] = {}
    for folder in folders:
        names = root.names(folder)
        if not isinstance(names, Unknown):
            for name in names:
                if name.endswith(".conf"):
                    paths.setdefault(name, f"{folder}/{name}")
    for name in sorted(paths):
        content = root.text(paths[name])
        if not isinstance(content, Unknown):
            yield paths[name], content


def _last_setting(files: list[tuple[str, str]], key: str) -> tuple[Limit | Unknown | None, str]:
    """The last ``key=soft[:hard]`` and its file; an empty value takes back the earlier ones."""
    value, source = "", ""
    for path, content in files:
        for line in content.splitlines():
            name, equals, text = line.partition("=")
            if equals and name.strip() == key:
                value, source = text.strip(), path
    if not value:
        return None, ""
    soft, colon, hard = value.partition(":")
    return _limit(soft, hard if colon else soft, source), source


def _systemd_default(root: Root) -> Limit | Unknown | None:
    files = []
    content = root.text("/etc/systemd/system.conf")
    if not isinstance(content, Unknown):
        files.append(("/etc/systemd/system.conf", content))
    folders = ["/etc/systemd/system.conf.d", "/run/systemd/system.conf.d"]
    files += _drop_ins(root, [*folders, "/usr/lib/systemd/system.conf.d"])
    return _last_setting(files, "DefaultLimitMEMLOCK")[0]


def _docker(root: Root) -> tuple[Limit | Unknown | None, str | Unknown]:
    content = root.text(DOCKER_CONFIG)
    if isinstance(content, Unknown):
        return (None, "") if content.absent else (content, content)
    import json

    try:
        config = json.loads(content)
    except (ValueError, RecursionError) as error:
        unknown = Unknown(f"{DOCKER_CONFIG}: {error}")
        return unknown, unknown
    if not isinstance(config, dict):
        unknown = Unknown(f"{DOCKER_CONFIG}: not a JSON object")
        return unknown, unknown
    remap = config.get("userns-remap", "")
    remapped = remap if isinstance(remap, str) else Unknown(f"{DOCKER_CONFIG}: userns-remap")
    ulimits = config.get("default-ulimits")
    memlock = ulimits.get("memlock") if isinstance(ulimits, dict) else None
    if memlock is None:
        return None, remapped
    if not isinstance(memlock, dict):
        return Unknown(f"{DOCKER_CONFIG}: default-ulimits.memlock is no object"), remapped
    soft, hard = memlock.get("Soft", memlock.get("Hard")), memlock.get("Hard", memlock.get("Soft"))
    return _limit(str(soft), str(hard), DOCKER_CONFIG), remapped


def _pam(root: Root) -> tuple[PamLimit, ...] | Unknown:
    """The memlock rows in the order in which pam_limits reads them; a later one wins."""
    paths = ["/etc/security/limits.conf"]
    names = root.names(PAM_FOLDER)
    if not isinstance(names, Unknown):
        paths += [f"{PAM_FOLDER}/{name}" for name in names if name.endswith(".conf")]
    elif not names.absent:
        return names
    rows = []
    for path in paths:
        content = root.text(path)
        if isinstance(content, Unknown):
            if content.absent:
                continue
            return content
        for line in content.splitlines():
            words = line.partition("#")[0].split()
            if len(words) == 4 and words[2] == "memlock" and words[1] in ("soft", "hard", "-"):
                value = parse_limit(words[3])
                if not isinstance(value, Unknown):
                    size = None if value is None else value * _PAM_UNIT_BYTES
                    rows.append(PamLimit(words[0], words[1], size, path))
    return tuple(rows)


def _slurm(root: Root) -> bool | Unknown | None:
    """Whether slurmd gives jobs the submitting shell's memlock: it does, unless told otherwise."""
    for path in SLURM_CONFIGS:
        content = root.text(path)
        if isinstance(content, Unknown):
            if content.absent:
                continue
            return content
        propagates = True
        for line in content.splitlines():
            key, equals, value = line.partition("#")[0].partition("=")
            listed = {word.strip().upper() for word in value.split(",")}
            if equals and key.strip().lower() == "propagateresourcelimits":
                propagates = bool(listed & {"ALL", "MEMLOCK"})
            elif equals and key.strip().lower() == "propagateresourcelimitsexcept":
                propagates = not listed & {"ALL", "MEMLOCK"}
        return propagates
    return None
