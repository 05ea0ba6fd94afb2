"""Known lines of the kernel about refused memory, programs that crash and cards that fail.

Wording: arch/x86/mm/fault.c and mm/util.c (both provoked), drivers/pci/pcie/aer.c of Linux 5.15 to
6.18, NVIDIA's open kernel modules (osinit.c).
"""

from __future__ import annotations

from checks.base.units import format_bytes
from preflight.logs.log_pattern import Groups, Layer, Pattern, Reading, Seen, Stage, number

_SAME_TIME = "the time of the line has to be that of the failure: dmesg -T"


def _read_size(groups: Groups, seen: Seen) -> Reading:
    size = number(groups, "size")
    return Reading(f"One request was of {format_bytes(size)}." if size else "")


PATTERNS = (
    Pattern(
        "kernel.overcommit",
        Layer.KERNEL,
        Stage.KERNEL,
        ("not enough memory for the allocation",),
        r"__vm_enough_memory: pid: \d+, comm: (?P<name>[^\n,]{1,40}), "
        r"(?:bytes: (?P<size>\d+) |no )?not enough memory for the allocation",
        ("memory.overcommit", "memory.host"),
        "the kernel did not promise {name} the memory that it asked for (ENOMEM): it is above what "
        "vm.overcommit_memory allows",
        "sysctl vm.overcommit_memory=1, or 0; see CommitLimit and Committed_AS in /proc/meminfo",
        "huge pages are not counted here; with 0 only what exceeds all memory and swap is refused",
        _read_size,
    ),
    Pattern(
        "kernel.segfault",
        Layer.KERNEL,
        Stage.SYMPTOM,
        ("]: segfault at ",),
        r"(?P<process>[^\s\[]{1,40})\[\d+\]: segfault at [^\n]{1,120}? in "
        r"(?P<name>[^\[\n]{1,80})\[",
        ("software.mooncake-duplicate", "software.library-missing"),
        "{process} crashed inside {name}",
        "see that {name} is there once, of one version: two Mooncakes or CUDAs in one image do "
        "this",
        _SAME_TIME,
    ),
    Pattern(
        "kernel.aer",
        Layer.KERNEL,
        Stage.KERNEL,
        ("AER: Uncorrect",),
        r"(?P<name>[0-9a-f]{4}:[0-9a-f:.]{7,10})?: ?AER: Uncorrect(?:ed|able) \(?(?P<kind>Fatal|"
        r"Non-Fatal)\)? error",
        ("pci.link-degraded",),
        "the PCIe link at {name} reported an error that it could not correct ({kind})",
        "reseat or replace the card, see the slot and the risers; the device may be gone until a "
        "reboot",
        _SAME_TIME,
    ),
    Pattern(
        "kernel.gpu-init",
        Layer.KERNEL,
        Stage.KERNEL,
        ("RmInitAdapter failed",),
        r"NVRM: GPU (?P<name>[\w:.]{1,20}): RmInitAdapter failed",
        ("gpu.driver", "gpu.count"),
        "the driver cannot start the GPU {name}",
        "see the NVRM lines before it; power-cycle the host, then replace the card",
    ),
)
