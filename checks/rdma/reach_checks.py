"""Can this user reach each RDMA device from user space: its node, and its library?"""

from __future__ import annotations

from collections.abc import Iterable

from checks.base.finding import (
    Check,
    CheckSet,
    Consequence,
    Evidence,
    Finding,
    Kind,
    Setting,
    Status,
)
from checks.base.needs import LaunchNeeds
from checks.base.unknown import Unknown
from checks.rdma.facts import Nic
from checks.rdma.judging import judge_devices
from checks.rdma.problems import Cause, Lost, node_problem, provider_problem
from checks.rdma.verbs import PROVIDER_CONFIGURATION, DeviceNode
from checks.run.facts import Facts

CHECKS = CheckSet()
# Debian's and Ubuntu's names.
LIBRARY_PACKAGE, PROVIDERS_PACKAGE = "libibverbs1", "ibverbs-providers"
_EPERM = "(1)"


@CHECKS.declare(
    Check(
        id="rdma.uverbs-permission",
        asks="Can this user open the devices' uverbs nodes for reading and writing?",
        consequence=Consequence.DEGRADED,
        why="sysfs shows a device to every container, but it is used through "
        "/dev/infiniband/uverbsN. Where that node is missing or may not be opened, Mooncake logs "
        "'Device ... path ... does not exist' or '... is not accessible for read/write', then "
        "'Skipping unavailable device', and goes on without it: with its own discovery that ends "
        "in TCP without a word. Operation not permitted (1) means the container's device list "
        "(or RDMA in exclusive network namespaces) forbids it, whatever the file's mode says.",
        outcomes=(
            (Status.FAIL, "a device cannot be opened, and no other is left to the process"),
            (Status.WARN, "a device cannot be opened, and others are left, or no launch is given"),
            (Status.PASS, "it opens"),
            (Status.UNKNOWN, "only the machine itself can tell, and this is a recording of files"),
            (Status.SKIP, "no RDMA, or no device"),
        ),
        remedy="Give the container the device (docker: --device /dev/infiniband; Kubernetes: the "
        "resource of the RDMA device plugin), the user the permission to read and write it, or "
        "load ib_uverbs on the host.",
        source="Mooncake topology.cpp isIbDeviceAccessible; rdma-core libibverbs.md",
        topics=("rdma",),
    )
)
def uverbs_permission(facts: Facts, needs: LaunchNeeds | None) -> Iterable[Finding]:
    check = "rdma.uverbs-permission"

    def describe(nic: Nic, lost: Lost | None, _scope: object) -> Finding:
        node = nic.uverbs_node
        path = f"/dev/infiniband/{nic.uverbs}" if nic.uverbs else "/dev/infiniband"
        finding = Finding(check, Status.PASS, nic.name, need=f"{path} opens for read and write")
        if isinstance(node, DeviceNode):
            seen = f"mode {node.permissions:04o}{'' if node.opens else ', ' + node.why_not}"
            finding = finding._replace(have="it opens", evidence=(Evidence(path, seen),))
        if lost is None:
            return finding
        exclusive = not isinstance(facts.rdma.kernel, Unknown) and (
            facts.rdma.kernel.netns_mode == "exclusive"
        )
        advice, settings = _node_remedy(nic, exclusive)
        text = f"Mooncake leaves {nic.name} out: {lost.why}"
        return finding._replace(have=lost.why, text=text, advice=advice, settings=settings)

    causes = (Cause.UVERBS,)
    return judge_devices(check, facts, needs, causes, lambda nic, _: node_problem(nic), describe)


def _node_remedy(nic: Nic, exclusive: bool) -> tuple[str, tuple[Setting, ...]]:
    node = nic.uverbs_node
    if nic.uverbs is None:
        return "load the module ib_uverbs on the host", (Setting(Kind.MODULE, "ib_uverbs", ""),)
    path = f"/dev/infiniband/{nic.uverbs}"
    if isinstance(node, DeviceNode) and not node.opens and not node.why_not.endswith(_EPERM):
        advice = f"let this user read and write {path} (rdma-core's udev rules give it mode 0666)"
        return advice, (Setting(Kind.DEVICE, path, path, f"mode {node.permissions:04o}"),)
    if exclusive and isinstance(node, DeviceNode) and not node.opens:
        command = "rdma system set netns shared"
        return (
            "run in the host's network namespace, or share RDMA devices between namespaces (on the "
            "host, as root)",
            (Setting(Kind.COMMAND, command, command, "exclusive"),),
        )
    if isinstance(node, DeviceNode) and node.opens:
        return "look at the kernel's log for the device: it opens, but the driver refuses", ()
    return f"give the container {path}", (Setting(Kind.DEVICE, path, path),)


@CHECKS.declare(
    Check(
        id="rdma.provider-missing",
        asks="Does libibverbs have the user-space library of each device?",
        consequence=Consequence.DEGRADED,
        why="libibverbs lists a device only if its provider (libmlx5, librxe, liberdma) and a "
        "driver file below /etc/libibverbs.d are installed. Images made from a bare distribution "
        "have the one and not the other: 'No RDMA devices found, check your device installation', "
        "or a device less than ibv_devices shows on the host, and TCP without a word.",
        outcomes=(
            (Status.FAIL, "a device has none, and no other is left to the process"),
            (Status.WARN, "a device has none, and others are left, or no launch is given"),
            (Status.PASS, "libibverbs lists the device"),
            (Status.UNKNOWN, "libibverbs could not be asked"),
            (Status.SKIP, "no RDMA, no device, or its node cannot be opened anyway"),
        ),
        remedy="Install the provider in the image: ibverbs-providers (Debian), rdma-core (Fedora).",
        source="rdma-core libibverbs/init.c; Mooncake #960, #3121, nixl #747",
        topics=("rdma",),
    )
)
def provider_missing(facts: Facts, needs: LaunchNeeds | None) -> Iterable[Finding]:
    check = "rdma.provider-missing"
    libraries = facts.rdma.libraries

    def problem(nic: Nic, _scope: object) -> Lost | Unknown | None:
        node = node_problem(nic)
        return provider_problem(nic) if node is None else node

    def describe(nic: Nic, lost: Lost | None, _scope: object) -> Finding:
        name = nic.provider if isinstance(nic.provider, str) else "the device's"
        finding = Finding(
            check, Status.PASS, nic.name, have="listed by libibverbs", need=f"provider {name}"
        )
        if lost is None:
            return finding
        known = libraries.providers
        seen = "unknown" if isinstance(known, Unknown) else " ".join(sorted(known))
        return finding._replace(
            have="not listed by libibverbs",
            text=f"Mooncake does not see {nic.name}: {nic.verbs.error}",
            evidence=(Evidence(PROVIDER_CONFIGURATION, seen or "no provider"),),
            advice=f"install the provider {name} in this image",
            settings=tuple(
                Setting(Kind.PACKAGE, package, package)
                for package in (LIBRARY_PACKAGE, PROVIDERS_PACKAGE)
                if package == PROVIDERS_PACKAGE or isinstance(libraries.file, Unknown)
            ),
        )

    return judge_devices(check, facts, needs, (Cause.PROVIDER,), problem, describe)
