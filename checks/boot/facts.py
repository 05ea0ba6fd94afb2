"""What the next boot makes of the host, as its files say it today."""

from __future__ import annotations

import re
from typing import NamedTuple

from checks.base.needs import LaunchNeeds
from checks.base.root import Root
from checks.base.unknown import Unknown
from checks.boot.bootloader import BootEntry, read_next_boot

MODULES = "/lib/modules"
LOADED = "/proc/modules"
COMMAND_LINE = "/proc/cmdline"
RELEASE = "/proc/sys/kernel/osrelease"
DKMS = "/var/lib/dkms"
MODPROBE_FOLDERS = ("/etc/modprobe.d", "/run/modprobe.d", "/usr/lib/modprobe.d", "/lib/modprobe.d")
APT_FOLDER = "/etc/apt/apt.conf.d"
UPGRADES, REBOOTS = "APT::Periodic::Unattended-Upgrade", "Unattended-Upgrade::Automatic-Reboot"
# The kernel modules that a launch lives by: GPUs, RDMA and its NICs, EFA.
WANTED = re.compile(
    r"nvidia(_peermem|_uvm)?|amdgpu|ib_(core|uverbs|umad)|rdma_(cm|ucm|rxe)|siw|mlx[45]_(core|ib)|"
    r"bnxt_(en|re)|irdma|ice|erdma|efa|ionic(_rdma)?|hns_roce(_hw_v2)?|cxgb4|iw_cxgb4|qedr|gdrdrv"
)


class BootFacts(NamedTuple):
    """running, words: of this boot. next: what starts next. loaded: modules of ``WANTED`` that are
    loaded now. next_modules: those that the next kernel has, where it is another one.
    blocked: module -> the file of modprobe.d that keeps it from being loaded. dkms: packages of
    sources, each with the kernels that it is built for. apt: the settings of unattended upgrades.
    held: packages that no upgrade touches, where upgrades are on.
    """

    running: str | Unknown
    words: tuple[str, ...] | Unknown
    next: BootEntry | Unknown
    loaded: tuple[str, ...] | Unknown
    next_modules: frozenset[str] | Unknown
    blocked: dict[str, str]
    dkms: dict[str, tuple[str, ...]]
    apt: dict[str, str] | Unknown
    held: tuple[str, ...] | Unknown


def read_boot(root: Root, _: LaunchNeeds | None) -> BootFacts:
    running, words = root.word(RELEASE), root.word(COMMAND_LINE)
    coming, text = read_next_boot(root), root.text(LOADED)
    loaded: tuple[str, ...] | Unknown
    if isinstance(text, Unknown):
        loaded = text
    else:
        names = (line.partition(" ")[0] for line in text.splitlines())
        loaded = tuple(sorted(name for name in names if WANTED.fullmatch(name)))
    modules: frozenset[str] | Unknown = frozenset()
    if isinstance(coming, Unknown):
        modules = coming
    elif coming.release != running:
        modules = _modules_of(root, coming.release)
    apt = _apt(root)
    by_itself = not isinstance(apt, Unknown) and apt.get(UPGRADES, "0") != "0"
    return BootFacts(
        running,
        words if isinstance(words, Unknown) else tuple(words.split()),
        coming,
        loaded,
        modules,
        _blocked(root),
        _dkms(root),
        apt,
        _held(root) if by_itself else (),
    )


def _modules_of(root: Root, release: str) -> frozenset[str] | Unknown:
    """Read the names of the modules that depmod found, and of those that are built in."""
    found = set()
    for name in ("modules.dep", "modules.builtin"):
        text = root.text(f"{MODULES}/{release}/{name}")
        if isinstance(text, Unknown):
            if text.absent and name == "modules.builtin":
                continue
            return text
        for line in text.splitlines():
            file = line.partition(":")[0].rpartition("/")[2]
            found.add(re.sub(r"\.ko(\.\w+)?$", "", file).replace("-", "_"))
    return frozenset(found)


def _blocked(root: Root) -> dict[str, str]:
    """Return blocked modules -> file: ``blacklist x``, or ``install x /bin/false``.

    Source: modprobe.d(5).
    """
    found: dict[str, str] = {}
    for folder in MODPROBE_FOLDERS:
        for name in root.listed(folder):
            text = root.text(f"{folder}/{name}") if name.endswith(".conf") else ""
            for line in () if isinstance(text, Unknown) else text.splitlines():
                words = line.split()
                kills = words[2:3] in (["/bin/false"], ["/bin/true"])
                if words[:1] == ["blacklist"] or (words[:1] == ["install"] and kills):
                    found.setdefault("".join(words[1:2]).replace("-", "_"), f"{folder}/{name}")
    return found


def _dkms(root: Root) -> dict[str, tuple[str, ...]]:
    """Return package and version -> kernels: /var/lib/dkms/nvidia/595.71.05/6.1.0-30-amd64."""
    return {
        f"{package}/{version}": tuple(
            name for name in root.listed(f"{DKMS}/{package}/{version}") if name[:1].isdigit()
        )
        for package in root.listed(DKMS)
        for version in root.listed(f"{DKMS}/{package}")
        if version[:1].isdigit()
    }


def _apt(root: Root) -> dict[str, str] | Unknown:
    """Read the last value of each setting that unattended upgrades obey."""
    names = root.names(APT_FOLDER)
    if isinstance(names, Unknown):
        return names
    found: dict[str, str] = {}
    wanted = (
        r"^\s*(APT::Periodic::Unattended-Upgrade|Unattended-Upgrade::Automatic-Reboot)\s+\"(\w+)\""
    )
    for name in names:
        text = root.text(f"{APT_FOLDER}/{name}")
        if not isinstance(text, Unknown):
            found |= dict(re.findall(wanted, text, re.MULTILINE))
    return found


def _held(root: Root) -> tuple[str, ...] | Unknown:
    answer = root.call("boot.held")
    return answer if isinstance(answer, Unknown) else tuple(map(str, answer))
