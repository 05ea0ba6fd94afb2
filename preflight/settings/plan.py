"""One plan: needs, facts and findings become settings. Pure; every dialect renders this object."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from checks.base.finding import Finding, Kind, Status
from checks.base.needs import LaunchNeeds
from checks.base.units import KIB, format_page_size
from checks.base.unknown import Unknown
from checks.hugetlb.boot import pages_after_boot, shares_after_boot
from checks.hugetlb.facts import HugetlbFacts
from checks.hugetlb.pools import POOLS
from checks.run.facts import Facts
from preflight.settings.launch import environment, pools, wishes
from preflight.settings.records import (
    Gap,
    Plan,
    Planned,
    PoolTarget,
    Reason,
    Request,
    Scope,
    Wish,
)
from preflight.settings.remedies import context_of

# The drop-in for the kernel's settings; hugetlb.after-reboot names it too.
SYSCTL_FILE = "/etc/sysctl.d/90-mooncake-hugepages.conf"
# These order something once instead of setting it.
ORDERS = ("vm.drop_caches", "vm.compact_memory")
NR_HUGEPAGES = "vm.nr_hugepages"
# Where less is the safer value.
_LESS = ("vm.overcommit_memory", "kernel.io_uring_disabled", "MC_MTU")
# Lists, of which all parts are wanted.
_LISTS = ("net.ipv4.ip_local_reserved_ports", "cpuset.mems", "cpuset.cpus")
# A command that writes the drop-in: the plan's own settings say so better.
_BOOT = "hugetlb.after-reboot"
_RESERVATION = "hugetlb.reservation"
# Whether pages may be taken from the rest of the host: unknown, none are.
_DECISIVE = (_RESERVATION, "hugetlb.cgroup-limit", "memory.host", "launch.sizes")
_NUMBER = re.compile(r"-?\d{1,20}", re.ASCII)
_MEASURED = (Kind.SYSCTL, Kind.SYSFS, Kind.CGROUP, Kind.ULIMIT, Kind.SHM_SIZE)
_STATUSES = list(Status)


def plan(
    needs: LaunchNeeds | None,
    facts: Facts,
    findings: Iterable[Finding],
    kept: Mapping[str, str] | None = None,
    unread: Iterable[Gap] = (),
) -> Plan:
    """Everything to set for ``needs`` on the host of ``facts``.

    kept: settings of our own drop-in as it stands, which are never dropped or lowered. unread:
    what of the launch could not be read.
    """
    findings, context = tuple(findings), context_of(facts)
    hugetlb: HugetlbFacts | Unknown = facts.topic("hugetlb")
    targets, pool_wishes, gaps = pools(needs, hugetlb)
    found = _of_findings(findings)
    judged = {(wish.kind, wish.name, wish.reason.check): wish.reason for wish in found}
    for wish in (*pool_wishes, *wishes(needs, facts)):
        if isinstance(wish, Gap):
            gaps.append(wish)
        else:  # what a check found says more than what it looks for
            key = (wish.kind, wish.name, wish.reason.check)
            found.append(wish._replace(reason=judged.get(key, wish.reason)))
    variables, conflicts, left_out = environment(needs)
    mended = {wish.name for wish in found if wish.kind is Kind.ENVIRONMENT}
    found += [wish for wish in variables if wish.name not in mended]
    found += [_kept(name, value) for name, value in (kept or {}).items() if name != NR_HUGEPAGES]
    merged, more = _merge(_of_one_size_or_ipc(found))
    contained = bool(context.container) or any(
        process.container is not None for process in (needs.processes if needs else ())
    )
    lasting = _Lasting(hugetlb, targets, kept or {}, contained)
    system = facts.topic("system")
    kernel = system if isinstance(system, Unknown) else system.kernel
    return Plan(
        "" if needs is None else _one_line(needs.source),
        tuple(sorted((lasting.planned(wish, why) for wish, why in merged), key=_place)),
        targets,
        hugetlb if isinstance(hugetlb, Unknown) else hugetlb.hugetlb.default_page_size_bytes,
        _pool_nodes(hugetlb),
        () if isinstance(hugetlb, Unknown) else hugetlb.writers,
        kernel,
        tuple(dict.fromkeys((*gaps, *unread))),
        (*conflicts, *more),
        tuple(left_out),
        tuple(dict.fromkeys(_impossible(findings))),
        tuple(dict.fromkeys(_undecided(findings))),
        context,
    )


def _one_line(text: str) -> str:
    """Names of launches stand in comments of what is rendered: none may end its line there."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _of_findings(findings: Iterable[Finding]) -> list[Wish]:
    """The settings of all that is not a pass, the worst first."""
    wanting = [f for f in findings if f.status not in (Status.PASS, Status.SKIP)]
    found = []
    for finding in sorted(wanting, key=lambda finding: _STATUSES.index(finding.status)):
        reason = Reason(finding.check, f"{finding.subject}: {finding.text or finding.have}")
        for setting in finding.settings if finding.check != _BOOT else ():
            kind, name, wanted, now = setting
            found.append(Wish(kind, name, wanted, now, True, reason))
    return found


def _impossible(findings: Iterable[Finding]) -> Iterator[str]:
    """Memory that is not there: asking the kernel for it would press everything else out."""
    for finding in findings:
        if finding.check == _RESERVATION and finding.status is Status.FAIL:
            yield f"{finding.subject}: have {finding.have}, need {finding.need}: {finding.text}"


def _undecided(findings: Iterable[Finding]) -> Iterator[str]:
    """What could not be read, and decides whether the host can do without the pages."""
    for finding in findings:
        if finding.check in _DECISIVE and finding.status is Status.UNKNOWN:
            yield f"{finding.check}, {finding.subject}: {finding.text or 'not known'}"


def _kept(name: str, value: str) -> Wish:
    reason = Reason("", f"{SYSCTL_FILE} sets it already")
    return Wish(Kind.SYSCTL, name, value, "", False, reason)


def _of_one_size_or_ipc(found: list[Wish]) -> list[Wish]:
    """With the host's /dev/shm a size of one's own has no effect: the one or the other."""
    if any(wish.kind is Request.IPC for wish in found):
        return [wish for wish in found if wish.kind is not Kind.SHM_SIZE]
    return found


def _merge(found: Iterable[Wish]) -> tuple[list[tuple[Wish, tuple[Reason, ...]]], list[str]]:
    """One wish for each setting, with every reason; and what had to be decided between."""
    merged: dict[tuple[Kind | Request, str], Wish] = {}
    reasons: dict[tuple[Kind | Request, str], dict[Reason, None]] = {}
    conflicts = []
    for wish in found:
        key = (wish.kind, wish.name)
        reasons.setdefault(key, {})[wish.reason] = None
        first = merged.setdefault(key, wish)
        if first is wish:
            continue
        wanted, decided = safer(wish.kind, wish.name, first.wanted, wish.wanted)
        if not decided:
            conflicts.append(
                f"{wish.name}: {first.reason.check} wants {first.wanted!r} and "
                f"{wish.reason.check} wants {wish.wanted!r}: the first is taken"
            )
        merged[key] = first._replace(
            wanted=wanted, now=first.now or wish.now, change=first.change or wish.change
        )
    return [(wish, tuple(reasons[key])) for key, wish in merged.items()], conflicts


def safer(kind: Kind | Request, name: str, first: str, second: str) -> tuple[str, bool]:
    """The value that serves both; ``(first, False)`` where none is known to."""
    if first == second:
        return first, True
    if name.endswith(_LISTS):
        parts = dict.fromkeys(part for text in (first, second) for part in text.split(",") if part)
        return ",".join(sorted(parts, key=_first_number)), True
    a, b = _amount(first), _amount(second)
    measured = kind in _MEASURED or isinstance(kind, Request) or name in _LESS
    if a is None or b is None or not measured:
        return first, False
    if name in _LESS:
        return (first if a <= b else second), True
    return (first if a >= b else second), True


def _first_number(part: str) -> tuple[int, str]:
    number = part.partition("-")[0]
    return (int(number) if number.isascii() and number.isdecimal() else 0, part)


def _amount(text: str) -> float | None:
    if text in ("unlimited", "max", "infinity", "-1"):
        return float("inf")
    return int(text) if _NUMBER.fullmatch(text) else None


def _pool_nodes(hugetlb: HugetlbFacts | Unknown) -> tuple[int, ...]:
    if isinstance(hugetlb, Unknown) or isinstance(hugetlb.hugetlb.default_page_size_bytes, Unknown):
        return ()
    pool = hugetlb.hugetlb.pool(hugetlb.hugetlb.default_page_size_bytes)
    return () if isinstance(pool, Unknown) else tuple(sorted(pool.nodes))


def _place(setting: Planned) -> tuple[int, str, list[str | int]]:
    """By scope, kind and name, numbers in names as numbers."""
    parts = re.split(r"(\d+)", setting.name)
    name = [int(part) if at % 2 else part for at, part in enumerate(parts)]
    return list(Scope).index(setting.scope), setting.kind.value, name


class _Lasting:
    """Gives each wish its scope, and says whether a reboot keeps it."""

    def __init__(
        self,
        hugetlb: HugetlbFacts | Unknown,
        targets: tuple[PoolTarget, ...],
        kept: Mapping[str, str],
        contained: bool,
    ) -> None:
        self._hugetlb, self._targets = hugetlb, targets
        self._kept, self._contained = kept, contained

    def planned(self, wish: Wish, reasons: tuple[Reason, ...]) -> Planned:
        scope = self._scope(wish)
        lasts, how = self._lasts(wish, scope)
        kind, name, wanted, now, change, _ = wish
        return Planned(scope, kind, name, wanted, now, change, reasons, lasts, how)

    def _scope(self, wish: Wish) -> Scope:
        kind, inner = wish.kind, Scope.CONTAINER if self._contained else None
        if isinstance(kind, Request) or kind in (Kind.DEVICE, Kind.CAPABILITY, Kind.SECURITY):
            return Scope.CONTAINER
        if kind is Kind.ULIMIT and " of " in wish.name:
            return Scope.RUNTIME
        if kind in (Kind.ULIMIT, Kind.CGROUP):
            return inner or Scope.RUNTIME
        if kind in (Kind.SHM_SIZE, Kind.PACKAGE):
            return inner or Scope.NODE
        return {
            Kind.FLAG: Scope.FLAG,
            Kind.ENVIRONMENT: Scope.ENVIRONMENT,
            Kind.KERNEL_ARGUMENT: Scope.BOOT,
        }.get(kind, Scope.NODE)

    def _lasts(self, wish: Wish, scope: Scope) -> tuple[bool, str]:
        if scope in (Scope.FLAG, Scope.ENVIRONMENT):
            return True, "it is part of the launch"
        if scope is Scope.CONTAINER:
            return True, "it is part of the container's description"
        if wish.name in ORDERS:
            return True, "it is done once, and nothing is to be kept"
        target = self._target(wish)
        if target is not None:
            return self._pool_lasts(target.page_bytes)
        if wish.kind is Kind.SYSCTL:
            value = self._kept.get(wish.name)
            if value is not None and safer(wish.kind, wish.name, value, wish.wanted)[0] == value:
                return True, SYSCTL_FILE
            return False, "until the next boot; --format sysctl makes it last"
        return _LASTING[wish.kind] if isinstance(wish.kind, Kind) else (True, "")

    def _target(self, wish: Wish) -> PoolTarget | None:
        """The pool that the wish is about."""
        match = re.search(r"(?:node(\d+)/)?hugepages/hugepages-(\d+)kB/nr_hugepages", wish.name)
        for target in self._targets:
            if wish.kind is Kind.SYSCTL and wish.name == NR_HUGEPAGES and target.node is None:
                if target.page_bytes == self._default():
                    return target
            elif wish.kind is Kind.SYSFS and match and int(match[2]) * KIB == target.page_bytes:
                node = int(match[1]) if match[1] else None
                if node == target.node:
                    return target
        return None

    def _default(self) -> int | None:
        hugetlb = self._hugetlb
        if isinstance(hugetlb, Unknown):
            return None
        size = hugetlb.hugetlb.default_page_size_bytes
        return None if isinstance(size, Unknown) else size

    def _pool_lasts(self, size: int) -> tuple[bool, str]:
        assert not isinstance(self._hugetlb, Unknown)
        wanted = sum(target.pages for target in self._targets if target.page_bytes == size)
        default = self._hugetlb.hugetlb.default_page_size_bytes
        later = pages_after_boot(self._hugetlb.writers, size, default)
        pool = self._hugetlb.hugetlb.pool(size)
        nodes = () if isinstance(pool, Unknown) else tuple(sorted(pool.nodes))
        shares = shares_after_boot(self._hugetlb.writers, size, default, nodes)
        elsewhere = any(
            target.page_bytes == size and target.pages > shares.get(target.node, target.pages)
            for target in self._targets
            if target.node is not None
        )
        if later is not None and later[0] >= wanted and not elsewhere:
            return True, later[1]
        said = "nobody sets it at boot" if later is None else f"{later[1]} sets {later[0]} pages"
        if later is not None and elsewhere and later[0] >= wanted:
            said += ", which lie on other nodes"
        return False, f"until the next boot ({said}); --format sysctl, sysfs or cmdline"


_LASTING: dict[Kind, tuple[bool, str]] = {
    Kind.SYSFS: (False, "until the next boot; a unit has to write it again"),
    Kind.CGROUP: (False, "until whoever made the cgroup makes it again"),
    Kind.ULIMIT: (True, "with --format limits or systemd, from the next login or start on"),
    Kind.SHM_SIZE: (False, "until the next boot; a line of /etc/fstab makes it last"),
    Kind.MODULE: (False, "until the next boot; a file of /etc/modules-load.d makes it last"),
    Kind.KERNEL_ARGUMENT: (True, "in force from the next boot on"),
    Kind.PACKAGE: (True, "it is installed"),
    Kind.COMMAND: (False, "as long as what it does; run it again"),
}


def pool_file(target: PoolTarget) -> str:
    """The file that sets the pool, or the node's share of it."""
    from checks.numa.nodes import NODES

    folder = POOLS if target.node is None else f"{NODES}/node{target.node}/hugepages"
    return f"{folder}/hugepages-{target.page_bytes // KIB}kB/nr_hugepages"


def pool_name(target: PoolTarget) -> str:
    """``2 MiB pages on node 0``."""
    where = "" if target.node is None else f" on node {target.node}"
    return f"{format_page_size(target.page_bytes)} pages{where}"
