"""Can this user reach each RDMA device from user space: its node, and its library?"""

from __future__ import annotations

from collections.abc import Iterable

from checks.base.check import CheckSet, any_launch
from checks.base.finding import Evidence, Finding, Kind, Setting, command, passed
from checks.base.needs import LaunchNeeds
from checks.base.unknown import Unknown
from checks.rdma.facts import Nic, RdmaFacts
from checks.rdma.judging import judge_devices
from checks.rdma.problems import Cause, Lost, node_problem, provider_problem
from checks.rdma.verbs import PROVIDER_CONFIGURATION, DeviceNode

CHECKS = CheckSet()
# Debian's and Ubuntu's names.
LIBRARY_PACKAGE, PROVIDERS_PACKAGE = "libibverbs1", "ibverbs-providers"
_EPERM = "(1)"


@CHECKS.check("rdma.uverbs-permission", any_launch)
def uverbs_permission(needs: LaunchNeeds | None, rdma: RdmaFacts) -> Iterable[Finding]:

    def describe(nic: Nic, lost: Lost | None, _scope: object) -> Finding:
        node = nic.uverbs_node
        path = f"/dev/infiniband/{nic.uverbs}" if nic.uverbs else "/dev/infiniband"
        finding = passed(nic.name, need=f"{path} opens for read and write")
        if isinstance(node, DeviceNode):
            seen = f"mode {node.permissions:04o}{'' if node.opens else ', ' + node.why_not}"
            finding = finding._replace(have="it opens", evidence=(Evidence(path, seen),))
        if lost is None:
            return finding
        exclusive = not isinstance(rdma.kernel, Unknown) and (rdma.kernel.netns_mode == "exclusive")
        advice, settings = _node_remedy(nic, exclusive)
        text = f"Mooncake leaves {nic.name} out: {lost.why}"
        return finding._replace(have=lost.why, text=text, advice=advice, settings=settings)

    causes = (Cause.UVERBS,)
    return judge_devices(rdma, needs, causes, lambda nic, _: node_problem(nic), describe)


def _node_remedy(nic: Nic, exclusive: bool) -> tuple[str, tuple[Setting, ...]]:
    node = nic.uverbs_node
    if nic.uverbs is None:
        return "load the module ib_uverbs on the host", (Setting(Kind.MODULE, "ib_uverbs", ""),)
    path = f"/dev/infiniband/{nic.uverbs}"
    if isinstance(node, DeviceNode) and not node.opens and not node.why_not.endswith(_EPERM):
        advice = f"let this user read and write {path} (rdma-core's udev rules give it mode 0666)"
        return advice, (Setting(Kind.DEVICE, path, path, f"mode {node.permissions:04o}"),)
    if exclusive and isinstance(node, DeviceNode) and not node.opens:
        share = command("rdma", "system", "set", "netns", "shared", now="exclusive", as_root=True)
        return (
            "run in the host's network namespace, or share RDMA devices between namespaces (on the "
            "host, as root)",
            (share,),
        )
    if isinstance(node, DeviceNode) and node.opens:
        return "look at the kernel's log for the device: it opens, but the driver refuses", ()
    return f"give the container {path}", (Setting(Kind.DEVICE, path, path),)


@CHECKS.check("rdma.provider-missing", any_launch)
def provider_missing(needs: LaunchNeeds | None, rdma: RdmaFacts) -> Iterable[Finding]:
    libraries = rdma.libraries

    def problem(nic: Nic, _scope: object) -> Lost | Unknown | None:
        node = node_problem(nic)
        return provider_problem(nic) if node is None else node

    def describe(nic: Nic, lost: Lost | None, _scope: object) -> Finding:
        name = nic.provider if isinstance(nic.provider, str) else "the device's"
        finding = passed(nic.name, "listed by libibverbs", f"provider {name}")
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

    return judge_devices(rdma, needs, (Cause.PROVIDER,), problem, describe)
