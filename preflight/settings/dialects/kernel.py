"""The kernel's settings of a plan: a drop-in of sysctl.d, a unit for single nodes, a boot line."""

from __future__ import annotations

from checks.base.finding import Kind
from checks.base.units import format_bytes, kernel_size
from checks.base.unknown import Unknown
from checks.hugetlb.boot import (
    COMMAND_LINE,
    PoolWriter,
    overruling,
    pages_after_boot,
    shares_after_boot,
)
from preflight.base.shell import is_hidden
from preflight.settings.commands import (
    NR_HUGEPAGES,
    ORDERS,
    SYSCTL_FILE,
    UNIT_FILE,
    UNIT_NAME,
    header,
)
from preflight.settings.dialects import ArtefactNames, Rendering
from preflight.settings.records import Plan, PoolTarget

# kernel-parameters.txt: hugepages=<node>:<pages> since 5.16.
_NODES_AT_BOOT = (5, 16)
# Who counts or hands on the pool when it starts, and has to find it complete.
_USERS = "kubelet.service containerd.service docker.service slurmd.service"


def sysctl(plan: Plan, names: ArtefactNames) -> Rendering:
    """Return the drop-in of sysctl.d: plain settings, and the default pool as a whole."""
    values, notes = sysctl_values(plan)
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
    """Return the values of a file of sysctl.d by name, and notes on them."""
    pages, notes = _default_pool(plan)
    values: dict[str, str] = {}
    if pages is not None:
        values[NR_HUGEPAGES] = str(pages)
        notes += overruled(plan)
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
    """Return notes on later files that set the pool to less."""
    pages, _ = _default_pool(plan)
    if pages is None:
        return []
    notes = []
    for writer in overruling(plan.writers, pages, plan.default_page_bytes):
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
    """Return the pools to write, so that a new unit file never lowers what the installed one sets.

    The larger size of each pool counts, and pools that only the installed unit has stay.
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
    """Return words of the kernel command line; the default page size stays."""
    if not plan.pools:
        return Rendering("", ("the launch takes no huge pages",))
    words = []
    if not isinstance(plan.default_page_bytes, Unknown):
        # What the plan was made with; a kernel with another default reads the sizes differently.
        words.append(f"default_hugepagesz={kernel_size(plan.default_page_bytes)}")
    notes = []
    at_boot = tuple(writer for writer in plan.writers if writer.source == COMMAND_LINE)
    wanted = {target.page_bytes for target in plan.pools}
    # The words replace those that are there, so what others have asked for is said again.
    kept = {writer.page_size_bytes or plan.default_page_bytes for writer in at_boot}
    for size in sorted({*wanted, *(size for size in kept if isinstance(size, int))}, reverse=True):
        words += [f"hugepagesz={kernel_size(size)}", f"hugepages={_counts(plan, size, at_boot)}"]
    old = isinstance(plan.kernel, Unknown) or plan.kernel < _NODES_AT_BOOT
    if old and any(target.node is not None for target in plan.pools):
        notes.append("kernels before 5.16 do not read hugepages=NODE:PAGES: use --format sysfs")
    if at_boot:
        notes.append("they replace the hugepages words that the command line has now")
    notes.append("add them to the boot loader's line (GRUB_CMDLINE_LINUX, grubby), then reboot")
    return Rendering(" ".join(words), tuple(notes))


def _counts(plan: Plan, size: int, at_boot: tuple[PoolWriter, ...]) -> str:
    """Return the pages of one size, by node if wanted so, and never fewer than now."""
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
