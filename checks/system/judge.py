"""Checks of the kernel, and of what the container lets a process use."""

import os
from collections.abc import Iterator
from errno import ENOMEM
from typing import NamedTuple

from checks.framework.finding import Evidence, Finding, Kind, Setting, passed, skip
from checks.framework.fold import fold
from checks.framework.needs import LaunchNeeds, ProcessNeeds
from checks.framework.problem import Problems
from checks.framework.units import GIB, KIB, MIB, format_page_size, kernel_size
from checks.framework.unknown import Unknown, require
from checks.rdma.registration import through_peermem
from checks.system.facts import KERNEL_RELEASE, URING_DISABLED, SystemFacts

CHECKS = Problems()


@CHECKS("io-uring.unavailable")
def io_uring(needs: LaunchNeeds, system: SystemFacts) -> Iterator[Finding]:
    """Judge whether processes that offload to an SSD can make an io_uring."""
    users = [process for process in needs.processes if process.uses_uring is not False]
    if not users:
        yield skip("no process of the launch uses io_uring")
        return
    yield from fold(_judge_uring(system, process) for process in users)


def _judge_uring(system: SystemFacts, process: ProcessNeeds) -> Finding:
    """Judge whether one process can make an io_uring, by the attempt made here.

    Returns:
        Unknown if the attempt succeeds, but the process runs in another container, whose seccomp
        profile may refuse.
    """
    errno = system.uring_errno
    finding = passed(process.name, "a ring can be made", "io_uring")
    container = process.container
    if container is not None and not system.container.inside and not container.privileged:
        unconfined = {"seccomp=unconfined", "seccomp:unconfined"} & {*container.security_options}
        if not unconfined and not (isinstance(errno, int) and errno != 0):
            text = "this is not the launch's container, and its seccomp profile decides"
            return finding.undecided(text, have="")
    if errno is None:
        return finding.undecided("it was not tried", have="")
    if isinstance(errno, Unknown):
        return finding.undecided(errno, have="")
    evidence = [Evidence("io_uring_setup(1)", os.strerror(errno) if errno else "a ring")]
    if isinstance(system.uring_disabled, int):
        evidence.append(Evidence(URING_DISABLED, str(system.uring_disabled)))
    finding = finding._replace(evidence=tuple(evidence))
    if not errno:
        return finding
    if isinstance(process.uses_uring, Unknown):
        return finding.undecided(process.uses_uring, have="")
    way, setting = _way_to_a_ring(system, errno, process)
    return finding.failed(
        "it starts, and every read of what was offloaded to the SSD fails",
        f"{way}; or remove MOONCAKE_OFFLOAD_USE_URING from the launch",
        (setting,),
        have=f"refused: {os.strerror(errno)}",
    )


def _way_to_a_ring(
    system: SystemFacts, refused_with: int, process: ProcessNeeds
) -> tuple[str, Setting]:
    """Return advice on what to change so that a ring can be made, and the setting.

    Args:
        refused_with: The errno of the attempt.
    """
    if refused_with == ENOMEM:
        way = "lift RLIMIT_MEMLOCK, which this kernel applies to a ring"
        return way, Setting(Kind.ULIMIT, "memlock", "unlimited", described_by=process.runtime)
    if isinstance(system.uring_disabled, int) and system.uring_disabled:
        sysctl = Setting(Kind.SYSCTL, "kernel.io_uring_disabled", "0", str(system.uring_disabled))
        return "set kernel.io_uring_disabled to 0", sysctl
    if system.seccomp == "filter":
        way = "allow io_uring in the container's seccomp profile"
        return way, Setting(Kind.SECURITY, "seccomp", "unconfined", described_by=process.runtime)
    now = process.environment.get("MOONCAKE_OFFLOAD_USE_URING", "")
    unset = Setting(Kind.ENVIRONMENT, "MOONCAKE_OFFLOAD_USE_URING", "", now)
    return "the kernel has no io_uring", unset


# HugeTLB sizes of arm64 by base page: kernel Documentation/arch/arm64/hugetlbpage.rst.
ARM64_SIZES_BYTES = {
    4 * KIB: (64 * KIB, 2 * MIB, 32 * MIB, GIB),
    16 * KIB: (2 * MIB, 32 * MIB, GIB),
    64 * KIB: (2 * MIB, 512 * MIB, 16 * GIB),
}
# What Mooncake asks for without MC_STORE_HUGEPAGE_SIZE, and the base page of all its arithmetic.
_USUAL_PAGE_BYTES = 4 * KIB


@CHECKS("system.page-size")
def page_size(needs: LaunchNeeds | None, system: SystemFacts) -> Iterator[Finding]:
    """Judge the base page size.

    Fail if an ARM host with this base page lacks a huge page size that the launch maps; warn if the
    base page is not 4 KiB.
    """
    size = require(system.page_bytes)
    evidence = (Evidence("sysconf(_SC_PAGE_SIZE)", str(size)),)
    have = f"{format_page_size(size)} base pages"
    finding = passed("host", have, evidence=evidence)
    usages = () if needs is None or isinstance(needs.usages, Unknown) else needs.usages
    counts = [pages.items() for usage in usages for pages in (usage.mapped, usage.dropped)]
    # The sizes that the launch maps, arena and fallbacks included.
    asked = sorted({spot.page_size_bytes for pages in counts for spot, count in pages if count})
    if system.architecture == "aarch64":
        sizes = ARM64_SIZES_BYTES.get(size, ())
        missing = [wanted for wanted in asked if wanted not in sizes]
        if missing:
            listed = ", ".join(format_page_size(wanted) for wanted in sizes)
            wanted = " and ".join(format_page_size(wanted) for wanted in missing)
            spelled = f"{kernel_size(missing[-1])}B"  # the largest, as the variable has it
            yield finding.failed(
                "mapping them fails with Invalid argument, so the server does not start",
                "set MC_STORE_HUGEPAGE_SIZE to a size that this kernel has",
                (Setting(Kind.ENVIRONMENT, "MC_STORE_HUGEPAGE_SIZE", "2MB", spelled),),
                have=f"{have}, huge pages of {listed}",
                need=f"huge pages of {wanted}",
            )
            return
    elif isinstance(system.architecture, Unknown) and asked and size != _USUAL_PAGE_BYTES:
        yield finding.undecided(system.architecture)
        return
    text = "sizes that are rounded to 4 KiB elsewhere are rounded to this page here"
    yield finding if size == _USUAL_PAGE_BYTES else finding.warned(text)


class _KernelFeature(NamedTuple):
    """A kernel feature that a launch needs.

    Attributes:
        kernel: The first with it.
        without: What fails then.
    """

    kernel: tuple[int, int]
    what: str
    without: str


_HUGE_MEMFD = _KernelFeature((4, 14), "memfd_create with huge pages", "L2 pools cannot be mapped")
_URING_KERNEL = _KernelFeature((5, 1), "io_uring", "reads from the SSD fail")
_DMA_BUF = _KernelFeature((5, 12), "ibv_reg_dmabuf_mr", "GPU memory cannot be registered")


@CHECKS("system.kernel-old")
def kernel_old(needs: LaunchNeeds, system: SystemFacts) -> Iterator[Finding]:
    """Judge whether the kernel is new enough for what the launch uses; warn if it is not."""
    kernel = require(system.kernel)
    needed = sorted(set(_needed_features(needs)))
    have = f"Linux {system.kernel_release}"
    evidence = (Evidence(KERNEL_RELEASE, str(system.kernel_release)),)
    missing = [feature for feature in needed if kernel < feature.kernel]
    finding = passed("host", have, evidence=evidence)
    if needed:
        major, minor = needed[-1].kernel
        finding = finding._replace(need=f"{major}.{minor} or newer", formula=needed[-1].what)
    if missing:
        text = "; ".join(f"without {feature.what}, {feature.without}" for feature in missing)
        finding = finding.warned(text, "use a newer kernel, unless this one has it back-ported")
    yield finding


def _needed_features(needs: LaunchNeeds) -> Iterator[_KernelFeature]:
    """Yield the kernel features that the launch uses."""
    for process in needs.processes:
        if isinstance(process.hugetlb_bytes, Unknown) or process.hugetlb_bytes:
            yield _HUGE_MEMFD
        if process.uses_uring is True:
            yield _URING_KERNEL
        gpu = process.gpu_registered_bytes
        takes_gpu = isinstance(gpu, Unknown) or gpu > 0
        if process.rdma is not None and takes_gpu and not through_peermem(process.environment):
            yield _DMA_BUF
