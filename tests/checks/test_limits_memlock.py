"""memlock.limit and its neighbours: what is pinned, what may be, and who says so."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from checks.framework.finding import Finding, Kind, Status
from checks.framework.needs import ContainerLimits, LaunchNeeds
from checks.framework.pages import Region
from checks.framework.units import GIB, MIB
from checks.framework.unknown import Unknown
from checks.limits.runtimes import Daemon, Limit, UnitLimit
from checks.memlock.demand import QUEUES_PER_NIC_BYTES, demand
from checks.rdma.registration import through_peermem
from tests.checks.launches import findings
from tests.checks.limit_hosts import IPC_LOCK, NO_RUNTIMES, facts, launch, limits, rank, system
from tests.tables import each_row

UNREADABLE = Unknown("/proc/self/limits: Permission denied")


def found(id_: str, needs: LaunchNeeds | None, *arguments: Any, **topics: Any) -> list[Finding]:
    return findings(facts(*arguments, **topics), needs, id_)


def one(id_: str, needs: LaunchNeeds | None, *arguments: Any, **topics: Any) -> Finding:
    (finding,) = found(id_, needs, *arguments, **topics)
    return finding


def docker(**settings: Any) -> ContainerLimits:
    return ContainerLimits("docker run", settings.pop("runtime", "docker"), **settings)


def unit(memlock: int | None, name: str = "containerd", configured: Any = None) -> Any:
    """Runtimes of a host whose ``name`` runs with this limit."""
    running = Daemon(Limit(memlock, memlock), Limit(1048576, 1048576))
    source = f"/etc/systemd/system/{name}.service.d/memlock.conf" if configured else ""
    return NO_RUNTIMES._replace(units=(UnitLimit(name, running, configured, source),))


@each_row(
    ("sizes", "nics", "need"),
    [
        # Measured with two soft-RoCE devices: 16 + 80 MiB pin 192 MiB, huge pages or not.
        ([16 * MIB, 80 * MIB], 2, 192 * MIB),
        # 64 000 000 B are 15 625 pages, 61.04 MiB for each NIC: VmPin grew by twice that.
        ([64_000_000], 2, 2 * 15625 * 4096),
        ([64_000_001], 2, 2 * 15626 * 4096),
        ([1, 1], 8, 16 * 4096),
        ([], 2, 0),
    ],
)
def test_every_region_is_pinned_once_for_every_nic_in_whole_pages(
    sizes: list[int], nics: int, need: int
) -> None:
    """What VmPin showed for the real library, to the page; whatever backs the memory."""
    for page in (4096, 2 * MIB):
        regions = tuple(Region(f"region {n}", size, page) for n, size in enumerate(sizes))
        wanted = demand(rank(regions=regions), nics, 4096)
        assert not isinstance(wanted, Unknown)
        assert wanted.bytes == need


def test_gpu_memory_counts_through_peermem_and_not_as_dma_buf() -> None:
    peermem = demand(rank(gpu_registered_bytes=GIB), 2, 4096)
    dma_buf = demand(
        rank(gpu_registered_bytes=GIB, environment={"WITH_NVIDIA_PEERMEM": "0"}), 2, 4096
    )
    assert not isinstance(peermem, Unknown)
    assert not isinstance(dma_buf, Unknown)
    assert peermem.bytes - dma_buf.bytes == 2 * GIB
    assert "nvidia_peermem" in peermem.formula


@each_row(
    ("value", "counts"),
    [("1", True), ("ON", True), ("nonsense", True), ("", True), (" Off ", False), ("No", False)],
)
def test_the_peermem_switch_is_read_as_mooncake_reads_it(value: str, counts: bool) -> None:
    """A value that is no boolean leaves the default, nvidia_peermem."""
    assert through_peermem({"WITH_NVIDIA_PEERMEM": value}) is counts


def test_a_buffer_of_malloc_takes_one_page_more_of_each_nic() -> None:
    """16 MiB that begin 64 bytes before a page's end touch 4097 pages: so VmPin, with 2 devices."""
    buffer = Region("local buffer", 16 * MIB, 4096, 4032)
    wanted = demand(rank(regions=(buffer,)), 2, 4096)
    assert not isinstance(wanted, Unknown)
    assert wanted.bytes == 2 * (16 * MIB + 4096)


def test_a_limit_that_leaves_the_ring_out_fails() -> None:
    """io_uring pins its buffer once, whatever NICs there are, and RDMA has that much less."""
    process = rank(uses_uring=True, ring_bytes=1280 * MIB)
    alone = demand(rank(), 2, 4096)
    both = demand(process, 2, 4096)
    assert not isinstance(alone, Unknown)
    assert not isinstance(both, Unknown)
    assert both.bytes == alone.bytes + 1280 * MIB
    assert both.formula.endswith(" + 1.25 GiB SSD offload buffer once more, for io_uring")
    finding = one("memlock.limit", launch(process), limits(both.bytes - 1))
    assert finding.status is Status.FAIL
    assert "or use 1 NIC instead of 2" in finding.advice
    assert one("memlock.limit", launch(process), limits(both.bytes)).status is Status.WARN


ROOT = {"euid": 0, "effective_capabilities": IPC_LOCK}
NEED = 4 * GIB  # two NICs, 2 GiB
ROOM = NEED + 2 * QUEUES_PER_NIC_BYTES


@each_row(
    ("memlock", "other", "status"),
    [
        (8 * MIB, {}, Status.FAIL),
        (NEED - 1, {}, Status.FAIL),
        (NEED, {}, Status.WARN),
        (ROOM - 1, {}, Status.WARN),
        (ROOM, {}, Status.PASS),
        (ROOM + 4095, {}, Status.PASS),
        (None, {}, Status.PASS),
        (0, {}, Status.FAIL),
        (8 * MIB, ROOT, Status.PASS),
        (8 * MIB, {**ROOT, "initial_user_namespace": False}, Status.FAIL),
        (8 * MIB, {**ROOT, "initial_user_namespace": UNREADABLE}, Status.UNKNOWN),
        (8 * MIB, {"effective_capabilities": UNREADABLE}, Status.UNKNOWN),
        (None, {"effective_capabilities": UNREADABLE}, Status.PASS),
        (UNREADABLE, {}, Status.UNKNOWN),
        (UNREADABLE, ROOT, Status.PASS),
        # Root without the capability, as in a container that dropped it.
        (8 * MIB, {"euid": 0}, Status.FAIL),
    ],
)
def test_the_limit_of_this_shell(memlock: Any, other: dict[str, Any], status: Status) -> None:
    """Bare launches: soft limit, void under an effective capability of the initial namespace."""
    finding = one("memlock.limit", launch(rank()), limits(memlock, **other))
    assert finding.status is status
    if status is Status.FAIL:
        (setting,) = finding.settings
        assert (setting.kind, setting.name, setting.wanted) == (Kind.ULIMIT, "memlock", "unlimited")
        assert setting.now == str(memlock)


def test_the_soft_limit_counts_and_not_the_hard_one() -> None:
    """Nothing in SGLang or Mooncake raises RLIMIT_MEMLOCK."""
    finding = one("memlock.limit", launch(rank()), limits(8 * MIB, None))
    assert finding.status is Status.FAIL
    assert "the hard limit is high enough" in finding.text
    assert finding.have == "8.00 MiB soft, unlimited hard (this shell)"


@each_row(
    ("nics", "memlock", "status"),
    [
        (0, 8 * MIB, Status.SKIP),
        (0, None, Status.SKIP),
        (1, 3 * GIB, Status.PASS),
        (2, 3 * GIB, Status.FAIL),
        (UNREADABLE, 3 * GIB, Status.UNKNOWN),
        (UNREADABLE, None, Status.PASS),
    ],
)
def test_more_nics_need_more(nics: Any, memlock: int | None, status: Status) -> None:
    """60 GiB work and 80 GiB do not: every NIC pins the memory again (Mooncake #1382)."""
    assert one("memlock.limit", launch(rank()), limits(memlock), nics).status is status


def test_an_unknown_size_never_passes_a_finite_limit() -> None:
    """Prefill and decode register GPU memory whose size is known only once it runs."""
    gpu = Unknown("the KV cache on the GPU")
    process = rank(gpu_registered_bytes=gpu)
    assert one("memlock.limit", launch(process), limits(ROOM)).status is Status.UNKNOWN
    assert one("memlock.limit", launch(process), limits(None)).status is Status.PASS
    # What is known is already too much.
    finding = one("memlock.limit", launch(process), limits(GIB))
    assert (finding.status, finding.need) == (Status.FAIL, "4.00 GiB or more")
    nothing_known = rank(regions=gpu)
    assert one("memlock.limit", launch(nothing_known), limits(ROOM)).status is Status.UNKNOWN


@each_row(
    ("check", "needs"),
    [
        ("memlock.limit", None),
        ("memlock.limit", launch(rank(rdma=None))),
        ("memlock.io-uring-buffers", None),
        ("memlock.io-uring-buffers", launch(rank())),
        ("limits.nofile", None),
        ("limits.nofile", launch(rank(program="mooncake_client"))),
        ("limits.threads", None),
        ("limits.threads", launch()),
        ("limits.run-as", None),
        ("limits.run-as", launch()),
    ],
)
def test_where_nothing_is_asked_for_there_is_nothing_to_hold(check: str, needs: Any) -> None:
    assert one(check, needs).status is Status.SKIP


def test_an_unread_topic_is_unknown() -> None:
    finding = one("memlock.limit", launch(rank()), rdma=Unknown("rdma: took too long"))
    assert finding.status is Status.UNKNOWN
    assert "took too long" in finding.text


@each_row(
    ("settings", "status"),
    [
        ({"memlock_bytes": -1}, Status.PASS),
        ({"memlock_bytes": ROOM}, Status.PASS),
        ({"memlock_bytes": 64 * MIB}, Status.FAIL),
        ({"capabilities": ("IPC_LOCK",), "user": "0"}, Status.PASS),
        ({"capabilities": ("CAP_IPC_LOCK",), "user": "root:root"}, Status.PASS),
        ({"privileged": True, "user": "root"}, Status.PASS),
        ({"capabilities": ("ALL",), "user": "0:0"}, Status.PASS),
        # Whether it is in effect hangs on the image's USER.
        ({"capabilities": ("IPC_LOCK",)}, Status.WARN),
        ({"privileged": True}, Status.WARN),
        # Added capabilities are inert for other users.
        ({"capabilities": ("IPC_LOCK",), "user": "1000"}, Status.FAIL),
        ({"privileged": True, "user": "1000:1000"}, Status.FAIL),
        ({"privileged": True, "user": "1000", "memlock_bytes": -1}, Status.PASS),
        ({"capabilities": ("SYS_NICE",)}, Status.FAIL),
        ({}, Status.FAIL),
        ({"runtime": "kubernetes"}, Status.FAIL),
        ({"runtime": "kubernetes", "capabilities": ("IPC_LOCK",), "user": "1000"}, Status.FAIL),
        ({"runtime": "kubernetes", "capabilities": ("IPC_LOCK",), "user": "0"}, Status.PASS),
    ],
)
def test_the_launchs_own_container_settings_decide(
    settings: dict[str, Any], status: Status
) -> None:
    """On a host whose shell is unlimited root and whose containerd hands on 8 MiB."""
    shell = limits(None, runtimes=unit(8 * MIB), **ROOT)
    finding = one("memlock.limit", launch(rank(container=docker(**settings))), shell)
    assert finding.status is status, finding


@each_row(
    ("runtimes", "runtime", "status"),
    [
        (unit(None), "docker", Status.PASS),
        (unit(None), "kubernetes", Status.PASS),
        (unit(8 * MIB, "docker"), "docker", Status.FAIL),
        # dockerd hands nothing on to pods.
        (unit(None, "docker"), "kubernetes", Status.UNKNOWN),
        (unit(8 * MIB, "crio"), "kubernetes", Status.FAIL),
        (NO_RUNTIMES, "docker", Status.UNKNOWN),
        (NO_RUNTIMES._replace(docker_default=Limit(None, None)), "docker", Status.PASS),
        (unit(None)._replace(docker_default=Limit(MIB, MIB)), "docker", Status.FAIL),
        (unit(None)._replace(docker_default=Limit(MIB, MIB)), "kubernetes", Status.PASS),
        (unit(None)._replace(docker_default=UNREADABLE), "docker", Status.UNKNOWN),
    ],
)
def test_a_container_without_a_limit_has_its_runtimes(
    runtimes: Any, runtime: str, status: Status
) -> None:
    """And never this shell's, which is unlimited here."""
    needs = launch(rank(container=docker(runtime=runtime)))
    assert one("memlock.limit", needs, limits(None, runtimes=runtimes)).status is status


def test_inside_the_container_its_own_limit_counts() -> None:
    """Where the check runs in the pod, what the pod has beats what a manifest might get."""
    needs = launch(rank(container=docker(runtime="kubernetes")))
    pod = system("kubernetes")
    assert one("memlock.limit", needs, limits(8 * MIB), 2, pod).status is Status.FAIL
    assert one("memlock.limit", needs, limits(None), 2, pod).status is Status.PASS
    assert one("memlock.limit", needs, limits(8 * MIB, **ROOT), 2, pod).status is Status.PASS
    other = {**ROOT, "initial_user_namespace": False}
    assert one("memlock.limit", needs, limits(8 * MIB, **other), 2, pod).status is Status.FAIL


def test_privileged_is_void_where_docker_remaps_users() -> None:
    remapped = unit(8 * MIB)._replace(userns_remap="default")
    needs = launch(rank(container=docker(privileged=True, user="0")))
    assert one("memlock.limit", needs, limits(None, runtimes=remapped)).status is Status.FAIL
    unreadable = unit(8 * MIB)._replace(userns_remap=UNREADABLE)
    assert one("memlock.limit", needs, limits(None, runtimes=unreadable)).status is Status.UNKNOWN


_ORDER = {Status.FAIL: 0, Status.UNKNOWN: 1, Status.WARN: 2, Status.PASS: 3}
_SIZES = st.integers(1, 1 << 45)


@given(_SIZES, st.one_of(st.none(), _SIZES), _SIZES, st.integers(1, 16))
def test_a_higher_limit_never_worsens(size: int, low: int | None, more: int, nics: int) -> None:
    high = None if low is None else low + more
    needs = launch(rank(size=size))
    statuses = [one("memlock.limit", needs, limits(at), nics).status for at in (low, high)]
    assert _ORDER[statuses[0]] <= _ORDER[statuses[1]]


@given(_SIZES, _SIZES, _SIZES, st.integers(1, 15))
def test_more_memory_or_nics_never_improve(size: int, more: int, limit: int, nics: int) -> None:

    def status(registered: int, devices: int) -> int:
        finding = one("memlock.limit", launch(rank(size=registered)), limits(limit), devices)
        return _ORDER[finding.status]

    assert status(size + more, nics) <= status(size, nics)
    assert status(size, nics + 1) <= status(size, nics)


@each_row(
    ("memlock", "other", "status"),
    [
        (None, {}, Status.PASS),
        (8 * MIB, {}, Status.WARN),
        (100 * GIB, {}, Status.WARN),
        (8 * MIB, ROOT, Status.PASS),
        (UNREADABLE, {}, Status.UNKNOWN),
    ],
)
def test_rings_pin_the_offload_buffer(memlock: Any, other: dict[str, Any], status: Status) -> None:
    """How many I/O threads there will be is not known, so a finite limit is a risk."""
    process = rank(uses_uring=True, ring_bytes=1280 * MIB, regions=(), rdma=None)
    finding = one("memlock.io-uring-buffers", launch(process), limits(memlock, **other))
    assert (finding.status, finding.need) == (status, "1.25 GiB per I/O thread")


@each_row(("memlock", "status"), [(8 * MIB, Status.UNKNOWN), (None, Status.PASS)])
def test_what_another_transport_pins_is_unknown_unless_nothing_limits_it(
    memlock: int | None, status: Status
) -> None:
    process = rank(rdma=None, transport="ascend")
    finding = one("memlock.limit", launch(process), limits(memlock))
    assert finding.status is status
    if status is Status.UNKNOWN:
        assert "'ascend'" in finding.text
        assert finding.advice
    other = one("memlock.limit", launch(process._replace(transport="")), limits(8 * MIB))
    assert other.text == "the launch does not use RDMA"
