"""One plan: needs, facts and findings become settings, which every dialect renders."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from checks.framework.finding import Finding, Kind, Setting, Status
from checks.framework.needs import GivenGpus, LaunchNeeds
from checks.framework.regex import regex
from checks.framework.root import Root
from checks.framework.units import format_bytes
from checks.framework.unknown import Unknown
from checks.hugetlb.boot import pages_after_boot, parse_settings, shares_after_boot
from checks.hugetlb.facts import HugetlbFacts
from checks.hugetlb.pools import HugeTlb
from checks.memory.facts import SHM
from checks.run_checks.facts import Facts
from preflight.base.plain_data import fields, plain
from preflight.base.shell import visible, wanted_text
from preflight.host_tuning.commands import NR_HUGEPAGES, ORDERS, SYSCTL_FILE, context_of, is_ours
from preflight.host_tuning.records import (
    Gap,
    Plan,
    Planned,
    PoolTarget,
    Reason,
    Scope,
    Wish,
    Workload,
    environment,
    is_read,
    main_container,
    of_container,
    pools,
    wishes,
)
from preflight.host_tuning.refusal import refusal_of, refused_sizes

if TYPE_CHECKING:
    from preflight.needs.launch_sizing import LaunchSizing


# Where less is the safer value.
_LESS = ("vm.overcommit_memory", "kernel.io_uring_disabled", "MC_MTU")
# Lists, of which all parts are wanted.
_LISTS = ("net.ipv4.ip_local_reserved_ports", "cpuset.mems", "cpuset.cpus")
_NUMBER = regex(r"-?\d{1,20}", re.ASCII)
_OF_A_CONTAINER = (Kind.GPUS, Kind.NETWORK, Kind.IPC, Kind.MEMORY, Kind.HUGEPAGES)
_MEASURED = (*(Kind.SYSCTL, Kind.SYSFS, Kind.CGROUP, Kind.ULIMIT, Kind.SHM_SIZE), *_OF_A_CONTAINER)
_STATUSES = list(Status)


def plan(
    needs: LaunchNeeds | None,
    facts: Facts,
    findings: Iterable[Finding],
    kept: Mapping[str, str] | None = None,
    unread: Iterable[Gap] = (),
) -> Plan:
    """Return all settings for a launch on a host.

    Args:
        needs: Of the launch, None without one.
        kept: Values of our own sysctl drop-in, which the plan never lowers.
        unread: Gaps to add.
    """
    findings, context = tuple(findings), context_of(facts)
    hugetlb: HugetlbFacts | Unknown = facts.topic("hugetlb")
    targets, pool_wishes, gaps = pools(needs, hugetlb)
    for reason in refused_sizes(findings):
        gaps += [Gap("pages", reason), Gap("memory", reason)]
    wanted = _wishes_of_findings(findings)
    judged = {(_key(wish.setting), wish.reason.check): wish.reason for wish in wanted}
    for wish in (*pool_wishes, *wishes(needs, facts)):
        if isinstance(wish, Gap):
            gaps.append(wish)
        else:  # what a check found says more than what it looks for
            key = (_key(wish.setting), wish.reason.check)
            wanted.append(wish._replace(reason=judged.get(key, wish.reason)))
    variables, conflicts, left_out = environment(needs)
    mended = {_key(wish.setting) for wish in wanted}
    wanted += [wish for wish in variables if _key(wish.setting) not in mended]
    already = Reason("", f"{SYSCTL_FILE} sets it already")
    kept_values = (Setting(Kind.SYSCTL, *item) for item in (kept or {}).items())
    wanted += [Wish(s, False, already) for s in kept_values if s.name != NR_HUGEPAGES]
    failed = (f for f in findings if f.check == "memory.host" and f.status is Status.FAIL)
    short = next(failed, None)
    if short is not None and any(wish.setting.kind is Kind.SHM_SIZE for wish in wanted):
        # A tmpfs of more than there is ends by the OOM killer, as the pools themselves would.
        wanted = [wish for wish in wanted if wish.setting.kind is not Kind.SHM_SIZE]
        correction = f"correct memory.host first: have {short.have}, need {short.need}"
        conflicts.append(f"{SHM} is left out: {correction}")
    if any(wish.setting.kind is Kind.IPC for wish in wanted):  # then a size is in vain
        wanted = [wish for wish in wanted if wish.setting.kind is not Kind.SHM_SIZE]
    merged, more = _merge(wanted)
    contained = bool(context.container) or any(
        process.container is not None for process in (needs.processes if needs else ())
    )
    lasting = _Lasting(hugetlb, targets, kept or {}, contained)
    system = facts.topic("system")
    kernel = system if isinstance(system, Unknown) else system.kernel
    pages = hugetlb if isinstance(hugetlb, Unknown) else hugetlb.hugetlb
    default_page = pages if isinstance(pages, Unknown) else pages.default_page_size_bytes
    refusal = refusal_of(findings)
    return Plan(
        "" if needs is None else visible(needs.source),
        tuple(sorted((lasting.planned(wish, why) for wish, why in merged), key=_sort_key)),
        targets,
        default_page,
        () if isinstance(hugetlb, Unknown) else _pool_nodes(hugetlb.hugetlb, default_page),
        () if isinstance(hugetlb, Unknown) else hugetlb.writers,
        kernel,
        tuple(dict.fromkeys((*gaps, *unread))),
        (*conflicts, *more),
        tuple(left_out),
        refusal.impossible,
        refusal.undecided,
        context,
        too_large=(*refusal.ends, *_too_large(targets, hugetlb)),
    )


def _too_large(targets: tuple[PoolTarget, ...], hugetlb: HugetlbFacts | Unknown) -> tuple[str, ...]:
    """Return a sentence if the pools are larger than the host's memory; () if not, or not known."""
    meminfo = hugetlb if isinstance(hugetlb, Unknown) else hugetlb.meminfo
    total = meminfo if isinstance(meminfo, Unknown) else meminfo.value("MemTotal")
    wanted = sum(target.pages * target.page_bytes for target in targets)
    if isinstance(total, Unknown) or wanted <= total:
        return ()
    sizes = f"{format_bytes(wanted)} of huge pages, of {format_bytes(total)} of memory"
    return (f"this host is too small for them: {sizes}",)


def _wishes_of_findings(findings: Iterable[Finding]) -> list[Wish]:
    """Return a wish for each setting of the findings that fail, warn or are unknown, the worst
    first.

    Settings of the kind BOOT_SYSCTL are left out: the pool tells whether it lasts.
    """
    wanting = [f for f in findings if f.status not in (Status.PASS, Status.SKIP)]
    wishes = []
    for finding in sorted(wanting, key=lambda finding: _STATUSES.index(finding.status)):
        reason = Reason(finding.check, f"{finding.subject}: {finding.text or finding.have}")
        # Whether a pool lasts is said of the pool itself.
        settings = (setting for setting in finding.settings if setting.kind is not Kind.BOOT_SYSCTL)
        wishes += [Wish(setting, True, reason) for setting in settings]
    return wishes


def _key(setting: Setting) -> tuple[Kind, str, str]:
    return setting.kind, setting.name, setting.unit


def _merge(wishes: Iterable[Wish]) -> tuple[list[tuple[Wish, tuple[Reason, ...]]], list[str]]:
    """Join the wishes for the same setting into one, and return each with its reasons.

    If values differ the safer is taken. If none is safer, the first is taken, and a sentence tells
    the conflict.
    """
    merged: dict[tuple[Kind, str, str], Wish] = {}
    reasons: dict[tuple[Kind, str, str], dict[Reason, None]] = {}
    conflicts = []
    for wish in wishes:
        key = _key(wish.setting)
        reasons.setdefault(key, {})[wish.reason] = None
        first = merged.setdefault(key, wish)
        if first is wish:
            continue
        mine, other = first.setting, wish.setting
        wanted, decided = safer(mine.kind, mine.name, mine.wanted, other.wanted)
        if not decided:
            both = f"{first.reason.check} wants {mine.wanted!r} and {wish.reason.check} wants "
            conflicts.append(f"{mine.label}: {both}{other.wanted!r}: the plan has the first")
        setting = mine._replace(wanted=wanted, now=mine.now or other.now)
        merged[key] = first._replace(setting=setting, change=first.change or wish.change)
    return [(wish, tuple(reasons[key])) for key, wish in merged.items()], conflicts


def safer(setting_kind: Kind, name: str, first: str, second: str) -> tuple[str, bool]:
    """Return the value that serves both wishes, and True; ``(first, False)`` if none is known.

    Lists are joined. Of two amounts the larger is taken, but the smaller for the settings of
    ``_LESS``.
    """
    if first == second:
        return first, True
    if name.endswith(_LISTS):
        parts = dict.fromkeys(part for text in (first, second) for part in text.split(",") if part)
        numbers = {part: _amount(part.partition("-")[0]) or 0 for part in parts}
        return ",".join(sorted(parts, key=lambda part: (numbers[part], part))), True
    a, b = _amount(first), _amount(second)
    if a is None or b is None or not (setting_kind in _MEASURED or name in _LESS):
        return first, False
    return (first if a == b or (a < b) is (name in _LESS) else second), True


def _amount(text: str) -> float | None:
    if text in ("unlimited", "max", "infinity", "-1"):
        return float("inf")
    return int(text) if _NUMBER.fullmatch(text) else None


def _pool_nodes(hugetlb: HugeTlb, size: int | Unknown) -> tuple[int, ...]:
    """Return the NUMA nodes with a pool of pages of ``size`` bytes; () if that is not known."""
    hugepage_pool = size if isinstance(size, Unknown) else hugetlb.pool(size)
    return () if isinstance(hugepage_pool, Unknown) else tuple(sorted(hugepage_pool.nodes))


def _sort_key(setting: Planned) -> tuple[int, str, list[str | int]]:
    """Return a key that sorts by scope, kind and name, numbers in names as numbers."""
    parts = re.split(r"(\d+)", setting.setting.name)
    name = [int(part) if at % 2 else part for at, part in enumerate(parts)]
    return list(Scope).index(setting.scope), setting.setting.kind.value, name


class _Lasting:
    """Gives each wish its scope, and says whether a reboot keeps it."""

    def __init__(
        self,
        hugetlb: HugetlbFacts | Unknown,
        targets: tuple[PoolTarget, ...],
        kept: Mapping[str, str],
        contained: bool,
    ) -> None:
        """Take the pools of the host and of the plan, our drop-in, and whether containers run."""
        self._hugetlb, self._targets = hugetlb, targets
        self._kept, self._contained = kept, contained

    def planned(self, wish: Wish, reasons: tuple[Reason, ...]) -> Planned:
        scope = self._scope(wish.setting)
        lasts, how = self._lasts(wish.setting, scope)
        return Planned(wish.setting, scope, wish.change, reasons, lasts, how)

    def _scope(self, setting: Setting) -> Scope:
        """Return who makes a setting.

        Without containers, limits are set by what starts processes (RUNTIME: limits.conf, systemd),
        and the size of /dev/shm by the host (NODE).
        """
        setting_kind, inner = setting.kind, Scope.CONTAINER if self._contained else None
        if setting_kind in (*_OF_A_CONTAINER, Kind.DEVICE, Kind.CAPABILITY, Kind.SECURITY):
            return Scope.CONTAINER
        if setting.unit:
            return Scope.RUNTIME
        if setting_kind in (Kind.ULIMIT, Kind.CGROUP):
            return inner or Scope.RUNTIME
        if setting_kind in (Kind.SHM_SIZE, Kind.PACKAGE):
            return inner or Scope.NODE
        scopes = {Kind.FLAG: Scope.FLAG, Kind.ENVIRONMENT: Scope.ENVIRONMENT}
        return {**scopes, Kind.KERNEL_ARGUMENT: Scope.BOOT}.get(setting_kind, Scope.NODE)

    def _lasts(self, wish: Setting, scope: Scope) -> tuple[bool, str]:
        """Return whether a reboot keeps a setting, and what keeps it, or how long it lasts."""
        if scope in (Scope.FLAG, Scope.ENVIRONMENT):
            return True, "it is part of the launch"
        if scope is Scope.CONTAINER:
            return True, "it is part of the container's description"
        if wish.name in ORDERS:
            return True, "it is done once, and does not have to last"
        target = self._pool_of(wish)
        if target is not None:
            return self._pool_lasts(target.page_bytes)
        if wish.kind is Kind.SYSCTL:
            value = self._kept.get(wish.name)
            if value is not None and safer(wish.kind, wish.name, value, wish.wanted)[0] == value:
                return True, SYSCTL_FILE
            return False, "until the next boot; --format sysctl makes it last"
        return _LASTING[wish.kind]

    def _pool_of(self, wish: Setting) -> PoolTarget | None:
        """Return the pool whose pages the setting sets; None if it sets no pool of the plan."""
        hugetlb = self._hugetlb
        default = 0 if isinstance(hugetlb, Unknown) else hugetlb.hugetlb.default_page_size_bytes
        for target in self._targets:
            whole = target.node is None and target.page_bytes == default
            written = ((Kind.SYSFS, target.file), (Kind.SYSCTL, NR_HUGEPAGES if whole else ""))
            if (wish.kind, wish.name) in written:
                return target
        return None

    def _pool_lasts(self, size: int) -> tuple[bool, str]:
        """Return whether the pools of one page size have their pages after a boot, and a phrase:
        who sets them, or why not.

        Args:
            size: The bytes of a page.
        """
        assert not isinstance(self._hugetlb, Unknown)
        mine = [target for target in self._targets if target.page_bytes == size]
        wanted = sum(target.pages for target in mine)
        default = self._hugetlb.hugetlb.default_page_size_bytes
        later = pages_after_boot(self._hugetlb.writers, size, default)
        nodes = _pool_nodes(self._hugetlb.hugetlb, size)
        shares = shares_after_boot(self._hugetlb.writers, size, default, nodes)
        bound = [(target.pages, target.node) for target in mine if target.node is not None]
        elsewhere = any(pages > shares.get(on_node, pages) for pages, on_node in bound)
        if later is not None and later[0] >= wanted and not elsewhere:
            return True, later[1]
        message = "nobody sets it at boot" if later is None else f"{later[1]} sets {later[0]} pages"
        if later is not None and elsewhere and later[0] >= wanted:
            message += ", which are on other nodes"
        return False, f"until the next boot ({message}); --format sysctl, sysfs or cmdline"


_NEXT_START = "it counts from the next login or start on"
_LASTING: dict[Kind, tuple[bool, str]] = {
    Kind.SYSFS: (False, "until the next boot; a unit has to write it again"),
    Kind.CGROUP: (False, "until the cgroup is made again"),
    Kind.ULIMIT: (True, f"with --format limits or systemd: {_NEXT_START}"),
    Kind.SHM_SIZE: (False, "until the next boot; a line of /etc/fstab makes it last"),
    Kind.MODULE: (False, "until the next boot; a file of /etc/modules-load.d makes it last"),
    Kind.KERNEL_ARGUMENT: (True, "in force from the next boot on"),
    Kind.PACKAGE: (True, "it is installed"),
    Kind.COMMAND: (False, "as long as what it changed; run it again then"),
}


def workload_of(needs: LaunchNeeds, sizing: LaunchSizing) -> Workload:
    """Return the description of the launch's main container: an object of Kubernetes with the
    container's name, or a Compose service.

    An empty Workload without a description.
    """
    container = main_container(needs)
    if container is None:
        return Workload()
    inside = {process.id.command for process in needs.processes if process.container == container}
    members = of_container(needs, container).processes
    indices = [process.gpu for process in members if process.gpu is not None]
    gpus, has_gpus = container.gpus, False
    if isinstance(gpus, GivenGpus):
        count = len(gpus.names) if gpus.names else gpus.number
        has_gpus = count is None or count > max(indices, default=0)
    has_rdma = isinstance(container.verbs_nodes, tuple) and bool(container.verbs_nodes)
    has = (container.capabilities, has_gpus, has_rdma)
    for process in sizing.inputs.processes:
        place = process.command.place
        if process.number not in inside or place is None:
            continue
        if place.kind == "pod":
            return Workload(place.name[0].partition("/")[0], place.container, *has)
        if place.kind == "service":
            return Workload("", place.name[0], *has)
    return Workload()


def unresolved_variables(sizing: LaunchSizing) -> list[Gap]:
    """Return a gap for each variable that programs read and whose value holds an unset variable."""
    return [
        Gap("environment", f"{name}={word.text}: {', '.join(word.unresolved)} is not set")
        for process in sizing.inputs.processes
        for name, word in process.command.environment.items()
        if word.unresolved and is_read(name)
    ]


def kept_settings(root: Root) -> dict[str, str]:
    """Return the settings of our own sysctl drop-in, which no new plan lowers; {} without one."""
    content = root.text(SYSCTL_FILE)
    if isinstance(content, Unknown) or not is_ours(content):
        return {}
    return {name: value for name, value in parse_settings(content) if value}


def plan_object(plan: Plan) -> dict[str, Any]:
    """Return the answer of ``schemas/plan-v1.schema.json``; its values are texts, as written."""
    return {
        "changes": sum(setting.change for setting in plan.settings),
        "settings": [
            {
                **fields(setting, "scope"),
                **fields(setting.setting, "kind"),
                "name": setting.setting.label,
                "now": setting.setting.now,
                "wanted": wanted_text(setting.setting),
                **fields(setting, "change", "reasons"),
                "survives_reboot": setting.lasts,
                "how": setting.how,
            }
            for setting in plan.settings
        ],
        "pools": [target.as_object() for target in plan.pools],
        "default_page_size_bytes": plain(plan.default_page_bytes),
        "unknowns": plain(plan.gaps),
        **fields(plan, "conflicts", "left_out", "impossible", "undecided", "unread"),
    }
