"""The kernel's settings of a plan: a drop-in of sysctl.d, a unit for single nodes, a boot line."""

from __future__ import annotations

from checks.base.finding import Kind
from checks.base.units import GIB, KIB, MIB, format_bytes
from checks.base.unknown import Unknown
from checks.hugetlb.boot import SYSCTL_CONF, SYSCTL_FOLDERS, PoolWriter, pages_after_boot
from preflight.settings.formats import Names, Rendering, header
from preflight.settings.plan import NR_HUGEPAGES, ORDERS, SYSCTL_FILE, pool_file, pool_name
from preflight.settings.records import Plan, PoolTarget

UNIT_NAME = "mooncake-hugepages.service"
UNIT_FILE = f"/etc/systemd/system/{UNIT_NAME}"
_COMMAND_LINE = "kernel command line"
# kernel-parameters.txt: hugepages=<node>:<pages> since 5.16.
_NODES_AT_BOOT = (5, 16)
# Who counts or hands on the pool when it starts, and has to find it complete.
_USERS = "kubelet.service containerd.service docker.service slurmd.service"


def sysctl(plan: Plan, names: Names) -> Rendering:
    """What sysctl can say: the pool of the default page size as a whole, and plain settings."""
    lines: list[str] = []
    pages, notes = _default_pool(plan)
    if pages is not None:
        assert isinstance(plan.default_page_bytes, int)
        size = format_bytes(pages * plan.default_page_bytes)
        lines += [f"# {size} of huge pages", f"{NR_HUGEPAGES} = {pages}"]
        notes += _overruled(plan, pages)
    for setting in plan.of(Kind.SYSCTL):
        if setting.name not in (NR_HUGEPAGES, *ORDERS):
            lines.append(f"{setting.name} = {setting.wanted}")
    if not lines:
        return Rendering("", tuple(notes))
    lines.insert(0, header(plan, SYSCTL_FILE))
    notes.append(f"write it to {SYSCTL_FILE}; sysctl -p {SYSCTL_FILE} puts it in force now")
    return Rendering("\n".join(lines), tuple(notes))


def _default_pool(plan: Plan) -> tuple[int | None, list[str]]:
    """Pages of the whole default pool, None where sysctl cannot set it, and what to know."""
    mine = [target for target in plan.pools if target.page_bytes == plan.default_page_bytes]
    notes = [
        f"{pool_name(target)}: sysctl sets the default page size alone; --format sysfs or cmdline "
        "sets them"
        for target in plan.pools
        if target.page_bytes != plan.default_page_bytes
    ]
    if not mine:
        return None, notes
    bound = {target.node for target in mine if target.node is not None}
    even = len({target.pages for target in mine}) == 1 and bound == set(plan.pool_nodes)
    if bound and not even:
        shares = ", ".join(f"{target.pages} on node {target.node}" for target in mine)
        notes.append(
            f"{NR_HUGEPAGES} is left out: it spreads pages evenly over all nodes, and the launch "
            f"takes {shares}; --format sysfs sets them node by node"
        )
        return None, notes
    return _never_less(plan, sum(target.pages for target in mine), plan.writers), notes


def _never_less(plan: Plan, pages: int, writers: tuple[PoolWriter, ...]) -> int:
    """What is set at boot today, for others, is not lowered."""
    assert isinstance(plan.default_page_bytes, int)
    later = pages_after_boot(writers, plan.default_page_bytes, plan.default_page_bytes)
    return pages if later is None else max(pages, later[0])


def _overruled(plan: Plan, pages: int) -> list[str]:
    """Whoever writes the pool after our drop-in, and less than it."""
    notes = []
    for writer in plan.writers:
        size = plan.default_page_bytes if writer.page_size_bytes is None else writer.page_size_bytes
        if size != plan.default_page_bytes or not _acts_after(writer.source):
            continue
        if writer.pages is None:
            notes.append(f"{writer.source} sets the pool after {SYSCTL_FILE}, by a script")
        elif writer.node is None and writer.pages < pages:
            notes.append(
                f"{writer.source} wins over {SYSCTL_FILE}: it is read later and sets "
                f"{writer.pages} pages"
            )
    return notes


def _acts_after(source: str) -> bool:
    """sysctl.d(5): by the names of files, whatever their folder; then TuneD and units."""
    if source in (_COMMAND_LINE, UNIT_FILE):
        return False
    folder, _, name = source.rpartition("/")
    if source != SYSCTL_CONF and folder in SYSCTL_FOLDERS:
        return name > SYSCTL_FILE.rpartition("/")[2]
    return True


def sysfs(plan: Plan, names: Names) -> Rendering:
    """A unit that brings each pool or node to its pages at boot, and fails where it gets fewer."""
    if not plan.pools:
        return Rendering("", ("the launch takes no huge pages",))
    files = [(pool_file(target), target.pages) for target in _with_earlier(plan)]
    # systemd replaces $ and %, so the shell's own have to be doubled.
    writes = [
        f"ExecStart=/bin/sh -c 'test \"$$(cat {file})\" -ge {pages} || echo {pages} > {file}'"
        for file, pages in files
    ]
    reads = [
        f"ExecStartPost=/bin/sh -c 'test \"$$(cat {file})\" -ge {pages}'" for file, pages in files
    ]
    lines = [
        header(plan, UNIT_FILE),
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
    note = f"write it to {UNIT_FILE}, then: systemctl daemon-reload; systemctl enable {UNIT_NAME}"
    return Rendering("\n".join(lines), (note,))


def _with_earlier(plan: Plan) -> list[PoolTarget]:
    """What our unit sets today is not lowered, and what it sets for another launch stays."""
    found = {(target.page_bytes, target.node): target for target in plan.pools}
    for writer in plan.writers:
        size, pages = writer.page_size_bytes, writer.pages
        if writer.source != UNIT_FILE or size is None or pages is None:
            continue
        earlier = PoolTarget(size, writer.node, pages, None)
        target = found.setdefault((size, writer.node), earlier)
        if target.pages < pages:
            found[size, writer.node] = earlier
    return list(found.values())


def cmdline(plan: Plan, names: Names) -> Rendering:
    """Words of the kernel command line; the default page size stays what it is."""
    if not plan.pools:
        return Rendering("", ("the launch takes no huge pages",))
    words = []
    if not isinstance(plan.default_page_bytes, Unknown):
        # What the plan was made with; a kernel with another default reads the sizes differently.
        words.append(f"default_hugepagesz={_size(plan.default_page_bytes)}")
    notes = []
    for size in sorted({target.page_bytes for target in plan.pools}, reverse=True):
        mine = [target for target in plan.pools if target.page_bytes == size]
        words += [f"hugepagesz={_size(size)}", f"hugepages={_counts(plan, size, mine)}"]
    if any(target.node is not None for target in plan.pools):
        old = not isinstance(plan.kernel, Unknown) and plan.kernel < _NODES_AT_BOOT
        if old or isinstance(plan.kernel, Unknown):
            notes.append("kernels before 5.16 do not read hugepages=NODE:PAGES: use --format sysfs")
    if any(writer.source == _COMMAND_LINE for writer in plan.writers):
        notes.append("they replace the hugepages words that the command line has now")
    notes.append("add them to the boot loader's line (GRUB_CMDLINE_LINUX, grubby), then reboot")
    return Rendering(" ".join(words), tuple(notes))


def _counts(plan: Plan, size: int, targets: list[PoolTarget]) -> str:
    if any(target.node is not None for target in targets):
        return ",".join(f"{target.node}:{target.pages}" for target in targets)
    own = tuple(writer for writer in plan.writers if writer.source == _COMMAND_LINE)
    later = pages_after_boot(own, size, plan.default_page_bytes)
    pages = sum(target.pages for target in targets)
    return str(pages if later is None else max(pages, later[0]))


def _size(size_bytes: int) -> str:
    for unit, scale in (("G", GIB), ("M", MIB)):
        if size_bytes >= scale:
            return f"{size_bytes // scale}{unit}"
    return f"{size_bytes // KIB}K"
