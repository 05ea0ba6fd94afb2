"""Rules about Ascend NPUs, of which this program reads nothing else."""

from __future__ import annotations

from collections.abc import Iterator

from checks.base.units import GIB, format_bytes
from preflight.processes.processes import Kind, LaunchProcess
from preflight.programs.mooncake_flags import flags_of, read_flags
from preflight.rules.rules import RuleSet, Seen, Severity
from preflight.rules.rules_allocator import segment_of

RULES = RuleSet()
# Mooncake #3791, its maintainers: an NPU takes 20 to 32 GB, and 32 GiB was seen to work.
CERTAIN_BYTES = 20 * GIB


def _speaks_ascend(process: LaunchProcess) -> bool:
    if process.server is not None:
        store = process.server.store
        return store is not None and store.value("protocol") == "ascend"
    if process.kind is not Kind.CLIENT:
        return False
    given = read_flags(process.arguments, flags_of("mooncake_client"))
    return [each.value for each in given if each.name == "protocol"][-1:] == ["ascend"]


@RULES.launch(
    "ascend-host-memory",
    Severity.WARN,
    "a segment on Ascend NPUs that older firmware cannot register",
    "with an HDK before 25.5.0 an NPU's page tables have entries of 4 KiB and hold 20 to 32 GB of "
    "host memory: setup ends, and the message names no size",
    "upgrade the HDK to 25.5.0 (npu-smi info shows it) and give the host huge pages of 2 MiB, or "
    "lower the segment",
    "Mooncake #3791 (its maintainers' answer); LMCache-Ascend #242. Not seen here: there is no NPU",
)
def ascend_host_memory(processes: tuple[LaunchProcess, ...]) -> Iterator[Seen]:
    for process in processes:
        if not _speaks_ascend(process):
            continue
        size, origin = segment_of(process)
        if size is not None and size > CERTAIN_BYTES:
            text = f"{process.kind.value}: {format_bytes(size)} a client, above 20 GiB an NPU"
            yield Seen(text, origin)
