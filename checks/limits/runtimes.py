"""The limits that a container runtime, a service or a login would hand on.

A container without a limit in the launch has that of the daemon that starts it; a service has the
unit's ``LimitMEMLOCK``, else systemd's ``DefaultLimitMEMLOCK``. Of limits.conf it is known whether
a row may change a limit, not to what.
Sources: systemd.exec(5), systemd.unit(5), systemd-system.conf(5), limits.conf(5), slurm.conf(5).
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from checks.framework.docker_config import DOCKER_CONFIG, docker_text, read_docker_config
from checks.framework.needs import LIMIT_NAMES, is_root
from checks.framework.root import Root
from checks.framework.units import KIB, MIB
from checks.framework.unknown import Unknown, UnknownFactError, none_if_absent, or_unknown, require

# Where units and their drop-ins lie, the strongest folder first.
UNIT_FOLDERS = ("/etc/systemd/system", "/run/systemd/system", "/lib/systemd/system")
RUNTIME_UNITS = ("containerd", "docker", "crio", "slurmd")
PAM_FOLDER = "/etc/security/limits.d"
SLURM_CONFIGS = ("/etc/slurm/slurm.conf", "/etc/slurm-llnl/slurm.conf")
_SUFFIXES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40, "P": 1 << 50}
# limits.conf(5): sizes are in KiB, and minutes.
_UNITS = {"memlock": KIB, "as": KIB, "data": KIB, "fsize": KIB, "stack": KIB, "cpu": 60}


def daemon_of(unit: str) -> str:
    return "dockerd" if unit == "docker" else unit


def runtime_units(runtime: str) -> tuple[str, ...]:
    """Name the daemons that may hand their limit to a container without a limit.

    Returns:
        () for pyxis, whose containers have the limit of the job.
    """
    # Docker's containers are children of containerd's shims; a dockerd without containerd.service
    # starts a containerd of its own, which has dockerd's limit.
    if runtime == "pyxis":
        return ()  # of the job
    return ("containerd", "crio") if runtime == "kubernetes" else ("containerd", "docker")


class Limit(NamedTuple):
    """A resource limit, in the unit of its resource (bytes, files, processes); None: unlimited."""

    soft: int | None
    hard: int | None


UNBOUNDED = Limit(None, None)


class Daemon(NamedTuple):
    """A running daemon's own limits, which it hands on to what it starts."""

    memlock: Limit | Unknown
    nofile: Limit | Unknown


class UnitLimit(NamedTuple):
    """A daemon that starts containers or jobs.

    Attributes:
        running: The limits of its process, None if none was seen to run.
        configured: The memlock in its unit, None if the unit sets none.
        source: The unit's file that sets memlock, or "".
    """

    name: str
    running: Daemon | None
    configured: Limit | Unknown | None
    source: str


class PamLimit(NamedTuple):
    """One row of limits.conf.

    Attributes:
        domain: A user, ``@group`` or ``*``.
        kind: Soft, hard, -.
        most: Bytes or a count, None for no limit.
        name: Of LIMIT_NAMES.
    """

    domain: str
    kind: str
    most: int | None
    source: str
    name: str = "memlock"


# systemd-system.conf(5), DefaultLimit*= where nobody sets it (MEMLOCK: since version 250). Of the
# others, systemd hands on what the kernel gave it, which bounds processes alone.
_SYSTEMD_DEFAULTS = {"memlock": Limit(8 * MIB, 8 * MIB), "nofile": Limit(1024, 524288)}


class RuntimeLimits(NamedTuple):
    """The limits that daemons, Docker, systemd, logins and Slurm hand on.

    Attributes:
        docker_default: Memlock of daemon.json's ``default-ulimits``, None if not set.
        userns_remap: Of daemon.json, "" if not set.
        slurm_propagates: Whether jobs inherit the memlock of the shell that submits them, None
            without Slurm.
        systemd: The ``DefaultLimit*`` of its files, by limit.
        init_nproc: Of process 1.
        pam: The rows of limits.conf and limits.d.
    """

    units: tuple[UnitLimit, ...]
    docker_default: Limit | Unknown | None
    userns_remap: str | Unknown
    systemd: Mapping[str, Limit | Unknown]
    pam: tuple[PamLimit, ...] | Unknown
    slurm_propagates: bool | Unknown | None
    init_nproc: Limit | Unknown = Unknown("not read")

    def unit(self, name: str) -> UnitLimit | None:
        return next((unit for unit in self.units if unit.name == name), None)

    def units_of(self, runtime: str) -> list[UnitLimit]:
        """Return the daemons that may start containers of ``runtime``, those that run first."""
        units = [unit for name in runtime_units(runtime) if (unit := self.unit(name))]
        return sorted(units, key=lambda unit: unit.running is None)

    def systemd_default(self, name: str) -> Limit | Unknown:
        """Return the limit ``name`` of a unit that does not set this limit."""
        if name in self.systemd:
            return self.systemd[name]
        return self.init_nproc if name == "nproc" else _SYSTEMD_DEFAULTS.get(name, UNBOUNDED)

    @or_unknown
    def login_limit(self, name: str, user: str | Unknown, now: Limit | Unknown) -> Limit | Unknown:
        """Return ``now``, the limit ``name`` before a login of ``user``, if the login keeps it.

        It is also Unknown if a row sets this limit, and ``user`` or ``now`` is unknown.

        Returns:
            Unknown if a row of limits.conf may change the limit, or the rows could not be read.
        """
        rows = [row for row in require(self.pam) if row.name == name]
        if not rows:
            return now
        who = require(user)
        for part, bound in zip(("soft", "hard"), require(now), strict=True):
            for row in rows:
                if row.kind in (part, "-") and row.most != bound and _may_apply(row.domain, who):
                    why = f"{row.source} sets {name} for {row.domain}"
                    return Unknown(f"{why}: what a login gets of it is not worked out")
        return now


def _may_apply(domain: str, user: str) -> bool:
    """Tell whether a row of limits.conf may apply to ``user``.

    Args:
        domain: The first word of the row. Only rows that name root apply to root; rows of groups
            and ranges may apply to all others.
    """
    if is_root(user):
        return domain == "root"
    return domain in (user, "*") or user.isdecimal() or domain[:1] in "@%" or ":" in domain


def read_runtime_limits(root: Root, daemons: Mapping[str, Daemon] | Unknown) -> RuntimeLimits:
    """Read the limits that daemons, Docker, systemd, logins and Slurm hand on."""
    docker_default, userns_remap = _read_docker(root)
    return RuntimeLimits(
        units=tuple(_read_units(root, {} if isinstance(daemons, Unknown) else daemons)),
        docker_default=docker_default,
        userns_remap=userns_remap,
        systemd=_read_systemd_defaults(root),
        pam=_read_pam(root),
        slurm_propagates=_read_slurm(root),
        init_nproc=limit_of_file(root.text("/proc/1/limits"), "Max processes", "/proc/1/limits"),
    )


def parse_limit(text: str) -> int | Unknown | None:
    """Return the number of a limit, with K, M, G, T or P as powers of 1024.

    Returns:
        None for ``unlimited``, ``infinity`` and -1; Unknown for any other text.
    """
    word = text.strip()
    if word in ("unlimited", "infinity", "-1"):
        return None
    # Of ASCII alone and 20 digits at most: int() takes those of other scripts, and refuses more.
    match = re.fullmatch(r"([0-9]{1,20})([KMGTP]?)", word)
    return int(match[1]) * _SUFFIXES[match[2]] if match else Unknown(f"not a limit: {word[:40]!r}")


@or_unknown
def limit_of_file(content: str | Unknown, name: str, source: str) -> Limit | Unknown:
    """Return the limit in the row ``name`` of /proc/PID/limits.

    Args:
        source: Its path, for reasons.
    """
    for line in require(content).splitlines():
        values = line[len(name) :].split() if line.startswith(name) else []
        if len(values) >= 2:
            return _parse_pair(values[0], values[1], source)
    return Unknown(f"{source}: has no row {name!r}")


def limit_of_pair(pair: object) -> Limit | Unknown:
    """Return the limit of [soft, hard], two words of the answer of ``limits.processes``."""
    if not isinstance(pair, list) or len(pair) != 2:
        return Unknown("limits.processes: has no pair of limits")
    return _parse_pair(str(pair[0]), str(pair[1]), "limits.processes")


def _parse_pair(soft: str, hard: str, source: str) -> Limit | Unknown:
    """Parse a soft and a hard limit.

    Args:
        source: The file, for the reason of an Unknown.
    """
    try:
        return Limit(require(parse_limit(soft)), require(parse_limit(hard)))
    except UnknownFactError as error:
        return Unknown(f"{source}: {error.fact.reason}")


def _read_units(root: Root, daemons: Mapping[str, Daemon]) -> Iterator[UnitLimit]:
    """Yield the limits of each daemon that starts containers or jobs.

    A daemon that neither runs nor has a unit file is left out.

    Args:
        daemons: Those that run, by process name.
    """
    for name in RUNTIME_UNITS:
        running = daemons.get(daemon_of(name))
        contents = list(_unit_files(root, f"{name}.service"))
        if running is None and not contents:
            continue
        configured, source = _last_setting(contents, "LimitMEMLOCK")
        yield UnitLimit(name, running, configured, source)


def _unit_files(root: Root, unit: str) -> Iterator[tuple[str, str]]:
    """Yield (path, content) of the unit's file and its drop-ins, in systemd's order."""
    main = (root.text(f"{folder}/{unit}") for folder in UNIT_FOLDERS)
    for folder, content in zip(UNIT_FOLDERS, main, strict=True):
        if not isinstance(content, Unknown):
            yield f"{folder}/{unit}", content
            break
    yield from _drop_ins(root, [f"{folder}/{unit}.d" for folder in UNIT_FOLDERS])


def _drop_ins(root: Root, folders: list[str]) -> Iterator[tuple[str, str]]:
    """Yield path and content of each drop-in that can be read."""
    for path in conf_files(root, folders):
        content = root.text(path)
        if not isinstance(content, Unknown):
            yield path, content


def conf_files(root: Root, folders: Sequence[str]) -> list[str]:
    """Return the paths of drop-ins (``*.conf``), sorted by file name.

    If several of ``folders`` have the same name, the file of the first folder is taken.
    """
    chosen = {
        name: f"{folder}/{name}"
        for folder in reversed(folders)
        for name in root.listed(folder)
        if name.endswith(".conf")
    }
    return [chosen[name] for name in sorted(chosen)]


def _last_setting(files: list[tuple[str, str]], key: str) -> tuple[Limit | Unknown | None, str]:
    """Return the last ``key=soft[:hard]`` in files of systemd, and the path of its file.

    (None, "") if the last value is empty, or if no file sets it.

    Args:
        files: (path, content).
    """
    value, source = "", ""
    for path, content in files:
        for line in content.splitlines():
            name, equals, text = line.partition("=")
            if equals and name.strip() == key:
                value, source = text.strip(), path
    if not value:
        return None, ""
    soft, colon, hard = value.partition(":")
    return _parse_pair(soft, hard if colon else soft, source), source


def _read_systemd_defaults(root: Root) -> dict[str, Limit | Unknown]:
    """Read the DefaultLimit rows of systemd's configuration, by limit; only those that are set."""
    folders = [f"{folder}/systemd/system.conf" for folder in ("/etc", "/run", "/usr/lib")]
    files = [(folders[0], "\n".join(root.lines(folders[0])))]
    files += _drop_ins(root, [f"{folder}.d" for folder in folders])
    limits = {name: _last_setting(files, f"DefaultLimit{name.upper()}")[0] for name in LIMIT_NAMES}
    return {name: limit for name, limit in limits.items() if limit is not None}


def _read_docker(root: Root) -> tuple[Limit | Unknown | None, str | Unknown]:
    """Return memlock of Docker's default-ulimits, None if not set, and the user-namespace
    remapping, "" if not set.

    Each is Unknown if it cannot be read.
    """
    config = read_docker_config(root)
    remapped = docker_text(config, "userns-remap")
    if isinstance(config, Unknown):
        return config, remapped
    ulimits = config.get("default-ulimits")
    memlock = ulimits.get("memlock") if isinstance(ulimits, dict) else None
    if memlock is None:
        return None, remapped
    if not isinstance(memlock, dict):
        return Unknown(f"{DOCKER_CONFIG}: default-ulimits.memlock is no object"), remapped
    soft, hard = memlock.get("Soft", memlock.get("Hard")), memlock.get("Hard", memlock.get("Soft"))
    return _parse_pair(str(soft), str(hard), DOCKER_CONFIG), remapped


@or_unknown
def _read_pam(root: Root) -> tuple[PamLimit, ...] | Unknown:
    """Read the rows of limits.conf and limits.d for LIMIT_NAMES, in the order of pam_limits; a
    later row wins.

    Malformed rows are left out.
    """
    names = (name for name in require(root.entries(PAM_FOLDER)) if name.endswith(".conf"))
    paths = ["/etc/security/limits.conf", *(f"{PAM_FOLDER}/{name}" for name in names)]
    rows = []
    for path in paths:
        for line in require(none_if_absent(root.text(path), "")).splitlines():
            row = line.partition("#")[0].split()
            if len(row) == 4 and row[2] in LIMIT_NAMES and row[1] in ("soft", "hard", "-"):
                value, unit = parse_limit(row[3]), _UNITS.get(row[2], 1)
                if not isinstance(value, Unknown):
                    most = None if value is None else value * unit
                    rows.append(PamLimit(row[0], row[1], most, path, row[2]))
    return tuple(rows)


@or_unknown
def _read_slurm(root: Root) -> bool | Unknown | None:
    """Tell whether jobs of Slurm get the memlock of the submitting shell, which is Slurm's default.

    Returns:
        None if no slurm.conf exists.
    """
    texts = (require(none_if_absent(root.text(path), None)) for path in SLURM_CONFIGS)
    config = next((text for text in texts if text is not None), None)
    propagates = None if config is None else True
    for line in (config or "").splitlines():
        key, equals, value = line.partition("#")[0].partition("=")
        name = key.strip().lower() if equals else ""
        listed = {word.strip().upper() for word in value.split(",")} & {"ALL", "MEMLOCK"}
        if name in ("propagateresourcelimits", "propagateresourcelimitsexcept"):
            propagates = bool(listed) is not name.endswith("except")
    return propagates
