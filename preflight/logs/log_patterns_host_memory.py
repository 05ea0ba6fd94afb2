"""Known lines of SGLang about host memory: its own check, and the pinning of host pools.

Wording: SGLang 0.5.2 to 0.5.23 (mem_cache/pool_host, mem_cache/host_memory.py,
mem_cache/hicache_auto_size.py).
"""

from __future__ import annotations

from checks.base.units import format_bytes
from preflight.logs.log_pattern import Groups, Layer, Pattern, Reading, Seen, Stage, number
from preflight.sglang.admission_gate import RESERVE_BYTES


def _read_gate(groups: Groups, seen: Seen) -> Reading:
    """SGLang counts in GB of 10^9; what it prints as free is after its reserve, in all releases
    from 0.5.2 on."""
    try:
        asked, free = float(groups["asked"]), float(groups["free"])
    except (KeyError, ValueError):
        return Reading()
    reserve = RESERVE_BYTES / 1e9
    if asked <= free:
        return Reading(
            f"What is asked for would fit: this release printed memory before its reserve of "
            f"10 GiB, which leaves {free - reserve:.2f} GB for this pool; "
            f"{asked - free + reserve:.2f} GB are missing."
        )
    return Reading(
        f"{asked - free:.2f} GB are missing for this pool of this rank: the {free:.2f} GB are what "
        f"is left after the reserve of 10 GiB ({reserve:.2f} GB), in newer releases already "
        f"divided by the ranks of the host. MemAvailable has to rise to {asked + reserve:.2f} GB "
        f"(times the ranks where it is divided), or the pool to shrink below {free:.2f} GB."
    )


def _read_pinning(groups: Groups, seen: Seen) -> Reading:
    size = number(groups, "size")
    decided = ""
    if "kernel.nvidia-cannot-map" in seen:
        decided = "the NVIDIA driver says in the kernel log that it could not lock the pages."
    text = f"One call was to pin {format_bytes(size)}." if size else ""
    return Reading(text, decided)


PATTERNS = (
    Pattern(
        "sglang.host-memory",
        Layer.SGLANG,
        Stage.CAUSE,
        ("Not enough host memory",),
        r"Not enough host memory(?: for (?P<pool>[^.\n]{1,80})| available)\. Requesting "
        r"(?P<asked>[\d.]+) GB but only have (?P<free>-?[\d.]+) GB free",
        ("sglang.admission-gate", "gate-blind-to-hugepages", "memory.host", "memory.cgroup"),
        "SGLang's own check refuses a host pool of {asked} GB: it is larger than what MemAvailable "
        "(and the cgroup, in newer releases) leaves after 10 GiB",
        "lower --hicache-size or --hicache-ratio, raise the container's limit, or reserve fewer "
        "huge pages: reserved ones are not in MemAvailable, though the pool would use them",
        "HugePages_Total x Hugepagesize in /proc/meminfo is what the check does not see; GB are "
        "10^9 bytes here",
        _read_gate,
    ),
    Pattern(
        "sglang.host-memory-request",
        Layer.SGLANG,
        Stage.WARNING,
        ("Not enough host memory for request",),
        r"Not enough host memory for request (?P<name>[\w-]{1,80})",
        ("decode-host-pool",),
        "the host pool of a decode server is full: this request's KV is not kept",
        "raise --hicache-ratio or --hicache-size of the decode server",
        "a pool that is full, not a host without memory",
    ),
    Pattern(
        "sglang.host-memory-other",
        Layer.SGLANG,
        Stage.CAUSE,
        ("Not enough host memory for M",),
        r"Not enough host memory for (?P<pool>M3\.1 NVFP4 KV[^\n]{0,60})",
        ("sglang.admission-gate", "memory.host", "memory.cgroup"),
        "SGLang's own check refuses the host pools together: they are larger than its budget",
        "lower --hicache-size or --hicache-ratio, or raise the container's memory limit",
    ),
    Pattern(
        "sglang.auto-size",
        Layer.SGLANG,
        Stage.CAUSE,
        ("No host memory is left for HiCache",),
        r"No host memory is left for HiCache after the 10 GiB reserve",
        ("sglang.admission-gate", "memory.host", "memory.cgroup"),
        "MemAvailable, or what the memory cgroup leaves, is below the 10 GiB that SGLang keeps "
        "free",
        "free memory, raise the container's limit, or reserve fewer huge pages",
        "compare memory.max less memory.current of the cgroup with MemAvailable",
    ),
    Pattern(
        "sglang.auto-cgroup",
        Layer.SGLANG,
        Stage.CAUSE,
        ("Cannot automatically size HiCache host memory",),
        r"Cannot automatically size HiCache host memory",
        ("memory.cgroup", "hicache-size-unset"),
        "SGLang cannot read the memory cgroup of its own process, so it will not size the pools",
        "give --hicache-size in GB per rank, or mount the cgroup file system in the container",
    ),
    Pattern(
        "sglang.cgroup-unread",
        Layer.SGLANG,
        Stage.WARNING,
        ("Cannot determine cgroup memory headroom",),
        r"Cannot determine cgroup memory headroom: (?P<error>[^\n]{1,120})",
        ("memory.cgroup",),
        "SGLang cannot read its memory cgroup and checks the pools against the whole host: a "
        "container's limit is found by the OOM killer",
        "see that all ranks' pools fit into the container's limit",
    ),
    Pattern(
        "sglang.host-smaller",
        Layer.SGLANG,
        Stage.CAUSE,
        ("The host memory should be larger than the device memory",),
        r"The host memory should be larger than the device memory",
        ("host-pools-refused", "max-total-tokens-bounds", "hicache-size-per-rank"),
        "the L2 pool of a rank is smaller than its L1 pool on the GPU, which this release refuses",
        "raise --hicache-size (GB per rank) above the GPU's KV pool, or give --hicache-ratio > 1",
    ),
    Pattern(
        "sglang.no-pointer",
        Layer.SGLANG,
        Stage.CAUSE,
        ("returned a null pointer",),
        r"(?:alloc returned a null pointer for [\d.]+ GB|memory allocation of [\d.]+ GiB) "
        r"\((?P<size>\d+) bytes\)",
        ("hugetlb.shortage", "memory.host", "memory.cgroup"),
        "a host pool got no memory",
        "with huge pages: reserve the pages before the start; without: lower "
        "--hicache-size or raise the memory limit",
        "Mooncake's own line before it names the errno",
    ),
    Pattern(
        "cuda.host-register",
        Layer.CUDA,
        Stage.CAUSE,
        ("cudaHostRegister failed",),
        r"cudaHostRegister failed \(rc=(?P<rc>-?\d+)(?:[^\n]{0,200}? size=(?P<size>\d+))?",
        ("memory.host", "pci.iommu", "register-chunk-ignored", "gpu.driver"),
        "the driver did not pin a host pool for the GPU (CUDA error {rc}): one very large call, "
        "little free memory, or an IOMMU that translates",
        "set SGLANG_HICACHE_HOST_REGISTER_CHUNK_GB=8, leave more memory free, boot with iommu=pt",
        "RLIMIT_MEMLOCK does not count here: CUDA does not ask for it; dmesg has 'Cannot map "
        "memory with base addr' where the pages could not be locked",
        _read_pinning,
    ),
)
