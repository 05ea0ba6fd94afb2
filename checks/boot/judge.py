"""Checks of what the next boot makes of the host."""

from __future__ import annotations

import re
from collections.abc import Iterator

from checks.base.check import CheckSet
from checks.base.finding import Evidence, Finding, UnjudgedError, passed, skip
from checks.base.unknown import Unknown, known
from checks.boot.bootloader import BootEntry
from checks.boot.facts import APT_FOLDER, COMMAND_LINE, REBOOTS, RELEASE, UPGRADES, BootFacts
from checks.system.facts import SystemFacts

CHECKS = CheckSet()
_IN_CONTAINER = "a container does not show what its host boots: ask there"
# Words of a command line that change what a launch finds; hugepages= is hugetlb.after-reboot's.
_MATTER = re.compile(
    r"(intel_|amd_)?iommu|kho|pci(e_acs_override|_aspm)?|transparent_hugepage|numa(_balancing)?|"
    r"mem(map)?|movable_?(node|core)|cgroup_\w+|systemd\.unified_cgroup_hierarchy|isolcpus|"
    r"module_blacklist|(mlx5|nvidia|ib|rdma)\w*\..*"
)


def _coming(boot: BootFacts, system: SystemFacts, subject: str) -> BootEntry:
    """Return the entry that boots next. Raises UnjudgedError where it cannot be seen from here."""
    why = _IN_CONTAINER if system.container.inside else boot.next
    if isinstance(why, BootEntry):
        return why
    raise UnjudgedError(skip(why.reason if isinstance(why, Unknown) else why, subject))


@CHECKS.check("boot.kernel")
def next_kernel(boot: BootFacts, system: SystemFacts) -> Iterator[Finding]:
    coming = _coming(boot, system, "kernel")
    running = known(boot.running)
    evidence = (Evidence(coming.source, coming.kernel), Evidence(RELEASE, running))
    found = passed("kernel", f"{coming.release} starts next", running, evidence=evidence)
    if coming.release != running:
        text = f"{running} runs; what worked on it was not tried on {coming.release}"
        advice = "reboot at a quiet time and check again, or choose the running kernel"
        found = found.warned(text, f"{advice} in the boot loader")
    yield found


@CHECKS.check("boot.modules")
def next_modules(boot: BootFacts, system: SystemFacts) -> Iterator[Finding]:
    """Judge each module that is loaded now and that a launch needs."""
    coming = _coming(boot, system, "modules")
    loaded = known(boot.loaded)
    if not loaded:
        yield skip("no module of a GPU or an RDMA device is loaded", "modules")
        return
    same = coming.release == boot.running
    for name in loaded:
        found = passed(name, f"there for {coming.release}", "loaded, as now")
        if name in boot.blocked:
            path = boot.blocked[name]
            text = f"{path} keeps it from being loaded: it was loaded by hand"
            evidence = (Evidence(path, name),)
            yield found.warned(text, f"remove it from {path}", have="", evidence=evidence)
        elif not same and isinstance(boot.next_modules, Unknown):
            yield found.unknown(boot.next_modules, have="")
        elif not same and name not in known(boot.next_modules):
            yield found.warned(*_missing(boot, coming, name), have=f"not for {coming.release}")
        else:
            yield found


def _missing(boot: BootFacts, coming: BootEntry, name: str) -> tuple[str, str]:
    """Return what is wrong with a module that is missing, and what mends it.

    DKMS builds it, where it has its sources.
    """
    stem = name.partition("_")[0]
    for package, kernels in boot.dkms.items():
        if package.startswith(stem) and coming.release not in kernels:
            text = f"DKMS has {package} and has not built it for {coming.release}"
            return text, f"dkms install {package} -k {coming.release}"
    text = f"/lib/modules/{coming.release} has no such module"
    return text, f"install it for {coming.release} before the reboot"


@CHECKS.check("boot.command-line")
def next_command_line(boot: BootFacts, system: SystemFacts) -> Iterator[Finding]:
    coming = _coming(boot, system, "kernel command line")
    now, then = (
        {word for word in words if _MATTER.fullmatch(word.partition("=")[0])}
        for words in (known(boot.words), coming.words)
    )
    evidence = (
        Evidence(COMMAND_LINE, " ".join(known(boot.words))),
        Evidence(coming.source, " ".join(coming.words)),
    )
    found = passed("kernel command line", " ".join(sorted(then)), evidence=evidence)
    gone, new = sorted(now - then), sorted(then - now)
    if gone or new:
        said = [f"{' '.join(gone)} is gone"] * bool(gone) + [f"{' '.join(new)} is new"] * bool(new)
        advice = (
            "write the arguments to keep into /etc/default/grub and run update-grub, which "
            f"writes {coming.source}"
        )
        found = found.warned(f"after the next boot {', and '.join(said)}", advice)
    yield found


@CHECKS.check("boot.upgrades")
def upgrades(boot: BootFacts, system: SystemFacts) -> Iterator[Finding]:
    """Judge whether the host upgrades its kernel and driver by itself."""
    if system.container.inside:
        yield skip(_IN_CONTAINER, "unattended upgrades")
        return
    if isinstance(boot.apt, Unknown):
        yield skip(f"no settings of apt are read here: {boot.apt.reason}", "unattended upgrades")
        return
    on = boot.apt.get(UPGRADES, "0") != "0"
    reboots = boot.apt.get(REBOOTS, "false").lower() == "true"
    held = known(boot.held) if not isinstance(boot.held, Unknown) else ()
    kept = [name for name in held if re.match(r"linux-image|nvidia|mlnx|rdma-core|doca", name)]
    evidence = tuple(Evidence(f"{APT_FOLDER} {name}", text) for name, text in boot.apt.items())
    have = f"{'on' if on else 'off'}{f', held: {chr(32).join(kept)}' if kept else ''}"
    found = passed("unattended upgrades", have, evidence=evidence)
    if on and reboots:
        text = "the host installs a kernel and reboots into it by itself"
        advice = "set Unattended-Upgrade::Automatic-Reboot to false, or hold kernel and driver"
        found = found.warned(text, f"{advice} (apt-mark hold)")
    elif on and not any(name.startswith("linux-image") for name in kept):
        text = "the host installs a kernel by itself, which runs after the next boot"
        found = found.warned(text, "hold kernel and driver: apt-mark hold linux-image-generic ..")
    yield found
