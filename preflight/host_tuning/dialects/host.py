"""What a plan sets on a host: sysctl, units, boot line, limits; and a playbook of all these."""

from __future__ import annotations

from typing import Any

from checks.framework.finding import Kind
from checks.framework.units import format_bytes, kernel_size
from checks.framework.unknown import Unknown
from checks.hugetlb.boot import (
    COMMAND_LINE,
    PoolWriter,
    overruling_writers,
    pages_after_boot,
    shares_after_boot,
)
from checks.limits.runtimes import RUNTIME_UNITS
from preflight.base.shell import is_hidden
from preflight.host_tuning.commands import (
    CONTAINERD,
    LIMITS_FILE,
    NOT_OF_A_CONTAINER,
    NR_HUGEPAGES,
    ORDERS,
    SYSCTL_FILE,
    UNIT_FILE,
    UNIT_NAME,
    drop_in,
    header,
    limit_line,
)
from preflight.host_tuning.dialects import DEFAULT_SERVICE, ArtefactNames, Rendering
from preflight.host_tuning.records import Plan, PoolTarget

# kernel-parameters.txt: hugepages=<node>:<pages> since 5.16.
_NODES_AT_BOOT = (5, 16)
# Who counts or hands on the pool when it starts, and has to find it complete.
_USERS = "kubelet.service containerd.service docker.service slurmd.service"


def sysctl(plan: Plan, names: ArtefactNames) -> Rendering:
    """Return the drop-in of sysctl.d: plain settings, and the default pool as a whole."""
    values, notes = sysctl_values(plan)
    notes = [*_default_pool(plan)[1], *notes]
    if not values:
        return Rendering("", tuple(notes))
    lines = [header(plan.source, SYSCTL_FILE)]
    if NR_HUGEPAGES in values and isinstance(plan.default_page_bytes, int):
        size_bytes = int(values[NR_HUGEPAGES]) * plan.default_page_bytes
        lines.append(f"# {format_bytes(size_bytes)} of huge pages")
    lines += [f"{name} = {value}" for name, value in values.items()]
    notes.append(f"write it to {SYSCTL_FILE}; sudo sysctl -p {SYSCTL_FILE} puts it in force now")
    return Rendering("\n".join(lines), tuple(notes))


def sysctl_values(plan: Plan) -> tuple[dict[str, str], list[str]]:
    """Return the values of a file of sysctl.d by name, and notes on them.

    Notes on pools that such a file cannot set are left out.
    """
    pages, _ = _default_pool(plan)
    values: dict[str, str] = {} if pages is None else {NR_HUGEPAGES: str(pages)}
    notes = overruled(plan)
    for setting in plan.of(Kind.SYSCTL):
        line = f"{setting.name} = {setting.wanted}"
        if any(map(is_hidden, line)):
            notes.append(f"{line!r} is left out: a file of sysctl.d cannot hold it")
        elif setting.name not in (NR_HUGEPAGES, *ORDERS):
            values[setting.name] = setting.wanted
    return values, notes


def needs_unit(plan: Plan) -> bool:
    """Return whether a pool is left that a file of sysctl.d cannot set."""
    whole = NR_HUGEPAGES in sysctl_values(plan)[0]
    return any(not whole or t.page_bytes != plan.default_page_bytes for t in plan.pools)


def _default_pool(plan: Plan) -> tuple[int | None, list[str]]:
    """Return the pages of the default pool (None if sysctl cannot set it), and notes."""
    mine = [target for target in plan.pools if target.page_bytes == plan.default_page_bytes]
    why = "sysctl sets the default page size alone; --format sysfs or cmdline sets them"
    notes = [f"{target.name}: {why}" for target in plan.pools if target not in mine]
    if not mine:
        return None, notes
    bound = {target.node for target in mine if target.node is not None}
    even = len({target.pages for target in mine}) == 1 and bound == set(plan.pool_nodes)
    if bound and not even:
        shares = ", ".join(f"{target.pages} on node {target.node}" for target in mine)
        text = "it spreads pages evenly over all nodes, and the launch takes"
        how = "--format sysfs sets them node by node"
        return None, [*notes, f"{NR_HUGEPAGES} is left out: {text} {shares}; {how}"]
    assert isinstance(plan.default_page_bytes, int)
    # Not lowered: what is reserved now, what a boot sets, what this very file says for others.
    ours = tuple(writer for writer in plan.writers if writer.source == SYSCTL_FILE)
    size = plan.default_page_bytes
    later = [pages_after_boot(writers, size, size) for writers in (plan.writers, ours)]
    pages = sum(target.kept_pages for target in mine)
    return max(pages, *(booted[0] for booted in later if booted is not None), 0), notes


def overruled(plan: Plan) -> list[str]:
    """Return a note on each file or script that is read later than our drop-in and may set the
    default pool to less.

    Returns:
        [] if the drop-in does not set that pool.
    """
    pages, _ = _default_pool(plan)
    if pages is None:
        return []
    notes = []
    for writer in overruling_writers(plan.writers, pages, plan.default_page_bytes):
        how = f"wins over {SYSCTL_FILE}: it is read later and sets {writer.pages} pages"
        how = f"sets the pool after {SYSCTL_FILE}, by a script" if writer.pages is None else how
        notes.append(f"{writer.source} {how}")
    return notes


def sysfs(plan: Plan, names: ArtefactNames) -> Rendering:
    """Return a unit that fills each pool at boot, and fails if it cannot."""
    if not plan.pools:
        return Rendering("", ("the launch takes no huge pages",))
    files = [(target.file, target.pages) for target in _with_earlier(plan)]
    # systemd replaces $ and %, so the shell's own have to be doubled.
    writes = [
        f"ExecStart=/bin/sh -c 'test \"$$(cat {file})\" -ge {pages} || echo {pages} > {file}'"
        for file, pages in files
    ]
    reads = [f"ExecStartPost=/bin/sh -c 'test \"$$(cat {f})\" -ge {pages}'" for f, pages in files]
    lines = [
        header(plan.source, UNIT_FILE),
        "[Unit]",
        "Description=Huge pages for SGLang HiCache and Mooncake, node by node",
        "After=systemd-sysctl.service",
        f"Before={_USERS}",
        "",
        "[Service]",
        "Type=oneshot",
        "RemainAfterExit=yes",
        *writes,
        *reads,
        "",
        "[Install]",
        "WantedBy=multi-user.target",
    ]
    then = f"sudo systemctl daemon-reload; sudo systemctl enable {UNIT_NAME}"
    return Rendering("\n".join(lines), (f"write it to {UNIT_FILE}, then: {then}",))


def _with_earlier(plan: Plan) -> list[PoolTarget]:
    """Return the pools that the unit writes.

    A pool that the installed unit sets too has the larger number of pages. A pool that only the
    installed unit sets is kept.
    """
    pools = {(target.page_bytes, target.node): target for target in plan.pools}
    for writer in plan.writers:
        size, pages = writer.page_size_bytes, writer.pages
        if writer.source != UNIT_FILE or size is None or pages is None:
            continue
        earlier = PoolTarget(size, writer.node, pages, None)
        target = pools.setdefault((size, writer.node), earlier)
        if target.pages < pages:
            pools[size, writer.node] = earlier
    return list(pools.values())


def cmdline(plan: Plan, names: ArtefactNames) -> Rendering:
    """Return the words of the kernel command line that reserve the pools, and those that it
    reserves now, the largest pages first.

    The default page size stays the same.
    """
    if not plan.pools:
        return Rendering("", ("the launch takes no huge pages",))
    arguments = []
    if not isinstance(plan.default_page_bytes, Unknown):
        # What the plan was made with; a kernel with another default reads the sizes differently.
        arguments.append(f"default_hugepagesz={kernel_size(plan.default_page_bytes)}")
    notes = []
    at_boot = tuple(writer for writer in plan.writers if writer.source == COMMAND_LINE)
    wanted = {target.page_bytes for target in plan.pools}
    # The words replace those that are there, so what others have asked for is said again.
    kept = {writer.page_size_bytes or plan.default_page_bytes for writer in at_boot}
    for size in sorted({*wanted, *(size for size in kept if isinstance(size, int))}, reverse=True):
        pages = _counts(plan, size, at_boot)
        arguments += [f"hugepagesz={kernel_size(size)}", f"hugepages={pages}"]
    old = isinstance(plan.kernel, Unknown) or plan.kernel < _NODES_AT_BOOT
    if old and any(target.node is not None for target in plan.pools):
        notes.append("kernels before 5.16 do not read hugepages=NODE:PAGES: use --format sysfs")
    if at_boot:
        notes.append("they replace the hugepages words that the command line has now")
    notes.append("add them to the boot loader's line (GRUB_CMDLINE_LINUX, grubby), then reboot")
    return Rendering(" ".join(arguments), tuple(notes))


def _counts(plan: Plan, size: int, at_boot: tuple[PoolWriter, ...]) -> str:
    """Return the text of ``hugepages=`` for pages of ``size`` bytes: a number, or NODE:PAGES if the
    plan is by node.

    No number is less than the pool has now, or than ``at_boot`` sets (the present command line).
    """
    targets = [target for target in plan.pools if target.page_bytes == size]
    mine = {target.node: target.kept_pages for target in targets}
    later = pages_after_boot(at_boot, size, plan.default_page_bytes)
    nodes = sorted({numa_node for numa_node in mine if numa_node is not None})
    if not nodes:
        return str(max(sum(mine.values()), 0 if later is None else later[0]))
    every = tuple(sorted({*plan.pool_nodes, *nodes}))
    booted = shares_after_boot(at_boot, size, plan.default_page_bytes, every)
    shares = {**dict.fromkeys(every, 0), **booted}
    counts = {numa_node: max(mine.get(numa_node, 0), shares[numa_node]) for numa_node in every}
    return ",".join(f"{numa_node}:{pages}" for numa_node, pages in counts.items() if pages)


# limits.conf(5): sizes are in KiB, the others as the kernel counts them.
_KIB_LIMITS = ("memlock", "as", "data", "fsize", "stack")
_NOTHING = "the plan has no limit to set"


def ulimits(plan: Plan) -> dict[str, str]:
    """Return the limits of the launch's own processes by name: bytes, a count, or ``unlimited``."""
    return {limit.name: limit.wanted for limit in plan.of(Kind.ULIMIT) if not limit.unit}


def host_limits(plan: Plan) -> dict[str, str]:
    """Return the launch's limits, for a login or a unit.

    A container's limit is left out if its present value is not known, unless the plan wants
    ``unlimited``.
    """
    limits = (limit for limit in plan.of(Kind.ULIMIT) if not limit.unit)
    return {
        limit.name: limit.wanted
        for limit in limits
        if limit.now or not limit.described_by or limit.wanted == "unlimited"
    }


def container_limits(plan: Plan) -> tuple[dict[str, str], list[str]]:
    """Return the limits that an engine takes with --ulimit, and a note on each other limit."""
    limits = ulimits(plan)
    why = "a container inherits it from its daemon (plan --format systemd writes that one's unit)"
    left = [name for name in NOT_OF_A_CONTAINER if name in limits]
    notes = [f"no container engine knows --ulimit {name}: {why}" for name in left]
    return {n: value for n, value in limits.items() if n not in NOT_OF_A_CONTAINER}, notes


def unit_limits(plan: Plan) -> dict[str, dict[str, str]]:
    """Return the limits of units: ``{"docker.service": {"memlock": "unlimited"}}``."""
    by_unit: dict[str, dict[str, str]] = {}
    for setting in plan.of(Kind.ULIMIT):
        if setting.unit:
            by_unit.setdefault(setting.unit, {})[setting.name] = setting.wanted
    return by_unit


def limits(plan: Plan, names: ArtefactNames) -> Rendering:
    """Return a file of limits.d: rows for every user, and for root, whom ``*`` does not mean
    (limits.conf(5)).
    """
    rows = [f"{domain:<4} - {name:<7} {value}" for domain, name, value in pam_rows(plan)]
    if not rows:
        return Rendering("", (_NOTHING,))
    note = f"write it to {LIMITS_FILE}; it counts from the next login on, and not in services"
    return Rendering("\n".join([header(plan.source, LIMITS_FILE), *rows]), (note,))


def pam_rows(plan: Plan) -> list[tuple[str, str, str]]:
    """Return ``(domain, limit, value)`` of each row, in the units of limits.conf(5)."""
    limits = host_limits(plan).items()
    return [(who, name, _pam(name, value)) for name, value in limits for who in ("*", "root")]


def _pam(name: str, value: str) -> str:
    if name not in _KIB_LIMITS or not value.isdecimal():
        return value
    return str(-(-int(value) // 1024))


def systemd(plan: Plan, names: ArtefactNames) -> Rendering:
    """Return a drop-in for the unit that starts the server: the service that is named, else the
    launch's own unit, else a default name.
    """
    limits = host_limits(plan)
    for unit in unit_limits(plan).values():
        limits = {**unit, **limits}
    units = list(unit_limits(plan))
    own_units = [unit for unit in units if unit.removesuffix(".service") not in RUNTIME_UNITS]
    target = f"{(names.service or DEFAULT_SERVICE).removesuffix('.service')}.service"
    if not names.service and own_units:  # the launch is a unit itself
        target = own_units[0]
    path = drop_in(target)
    others = ", ".join(unit for unit in units if unit != target)
    which = f" (and for {others})" if others else ""
    note = f"write it to {path}{which}, then: sudo systemctl daemon-reload, and restart the unit"
    return _unit(plan, path, limits, note)


def containerd(plan: Plan, names: ArtefactNames) -> Rendering:
    """Return a drop-in for containerd.service: the pods that it starts have the same limits."""
    limits = {**unit_limits(plan).get(CONTAINERD, {}), **host_limits(plan)}
    note = (
        f"write it to {drop_in(CONTAINERD)}, then: sudo systemctl daemon-reload; "
        "sudo systemctl restart containerd; pods that run keep their old limits"
    )
    return _unit(plan, drop_in(CONTAINERD), limits, note)


def of_unit(plan: Plan, unit: str) -> Rendering:
    """Return the drop-in of one unit that hands limits on."""
    path = drop_in(unit)
    return _unit(plan, path, unit_limits(plan)[unit], f"restart {unit} to put it in force")


def _unit(plan: Plan, path: str, limits: dict[str, str], note: str) -> Rendering:
    if not limits:
        return Rendering("", (_NOTHING,))
    rows = [limit_line(name, value) for name, value in sorted(limits.items())]
    return Rendering("\n".join([header(plan.source, path), "[Service]", *rows]), (note,))


_COLLECTIONS = "ansible.posix and community.general"


class _Plain(str):
    """A text that Ansible takes as it stands: ``!unsafe`` keeps it from being a template."""


def ansible(plan: Plan, names: ArtefactNames) -> Rendering:
    """Return a playbook of kernel settings, pools, limits and modules; nothing of containers."""
    import yaml

    tasks, notes = _tasks(plan)
    if not tasks:
        return Rendering("", (*notes, "the plan has nothing that a playbook sets"))
    play = {"name": "Hosts of a launch", "hosts": "all", "become": True, "tasks": tasks}
    dumper: Any = type("Dumper", (yaml.SafeDumper,), {})
    dumper.add_representer(_Plain, lambda to, text: to.represent_scalar("!unsafe", str(text)))
    text: str = yaml.dump([play], Dumper=dumper, sort_keys=False, width=1000, allow_unicode=False)
    notes.append(f"it uses the collections {_COLLECTIONS}")
    first = header(plan.source, "ansible-playbook -i HOSTS FILE")
    return Rendering(f"{first}\n{text.rstrip()}", tuple(notes))


def _tasks(plan: Plan) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the tasks of a playbook, and notes on settings left to the user."""
    values, notes = sysctl_values(plan)
    tasks = []
    for name, value in values.items():
        row = {"name": name, "value": value, "sysctl_file": SYSCTL_FILE, "sysctl_set": True}
        tasks.append(_task(f"Set {name}", "ansible.posix.sysctl", **row))
    if needs_unit(plan):
        tasks += _file(UNIT_FILE, sysfs(plan, ArtefactNames()).text)
        title, module = f"Start {UNIT_NAME} now and at each boot", "ansible.builtin.systemd_service"
        row = {"name": UNIT_NAME, "state": "restarted", "enabled": True, "daemon_reload": True}
        tasks.append(_task(title, module, **row))
    for domain, name, value in pam_rows(plan):
        row = {"domain": domain, "limit_type": "-", "limit_item": name, "value": value}
        title, module = f"Limit {name} of {domain}", "community.general.pam_limits"
        tasks.append(_task(title, module, **row, dest=LIMITS_FILE))
    for unit in sorted(unit_limits(plan)):
        tasks += _file(drop_in(unit), of_unit(plan, unit).text)
        notes.append(f"restart {unit} when its processes may end: the playbook does not restart it")
    for loaded in plan.of(Kind.MODULE):
        row = {"name": loaded.name, "params": loaded.wanted, "persistent": "present"}
        tasks.append(_task(f"Load {loaded.name}", "community.general.modprobe", **row))
    return tasks, notes


def _file(path: str, content: str) -> list[dict[str, Any]]:
    """Return the tasks that make the folder of a file and write the file."""
    folder = path.rpartition("/")[0]
    return [
        _task(f"Make {folder}", "ansible.builtin.file", path=folder, state="directory"),
        _task(
            f"Write {path}", "ansible.builtin.copy", dest=path, content=f"{content}\n", mode="0644"
        ),
    ]


def _task(title: str, module: str, /, **options: Any) -> dict[str, Any]:
    """Return a task for a module of Ansible.

    Braces in its texts are not read as a template.
    """
    plain = {key: _plain(value) for key, value in options.items()}
    return {"name": _plain(title), module: plain}


def _plain(value: Any) -> Any:
    braces = isinstance(value, str) and "{" in value
    return _Plain(value) if braces else value
