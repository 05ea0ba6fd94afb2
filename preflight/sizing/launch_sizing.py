"""A sizing of a launch as it was written: the verdict at both bounds, and what the rules find."""

from __future__ import annotations

from typing import NamedTuple

from checks.base.root import Root
from checks.base.unknown import Unknown
from preflight.launches.source import ReadFile, Reading
from preflight.processes.processes import LaunchOptions, understand
from preflight.processes.unread import Unread, unread
from preflight.sizing.admission import Admission, admit
from preflight.sizing.chosen_versions import known_sglang
from preflight.sizing.launch_inputs import LaunchInputs, gather_launch, worst
from preflight.sizing.sizing import EXIT_CODES, Sizing, judge_inputs, read_host


class LaunchSizing(NamedTuple):
    """The answer. ``most`` is the sizing at the upper bound, the one that is shown; ``least`` the
    one at the lower. Both are None where a number that decides is not known. unread: what of the
    launch is in no number, so that nothing fits for certain."""

    reading: Reading
    inputs: LaunchInputs
    least: Sizing | None
    most: Sizing | None
    admissions: tuple[Admission | Unknown, ...]
    status: str
    reason: str
    unread: tuple[Unread, ...] = ()

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.status]

    @property
    def shown(self) -> Sizing | None:
        return self.most or self.least


def size_launch(
    reading: Reading, source: str, options: LaunchOptions, root: Root, read_file: ReadFile
) -> LaunchSizing:
    """Understand ``reading`` and hold it against the host below ``root``."""
    host = read_host(root)
    known = known_sglang(options.sglang_version, options.installed)
    sglang_version = None if known is None else str(known[1].value)
    processes = understand(reading.commands, read_file, sglang_version)
    default_page = host.hugetlb.default_page_size_bytes
    inputs = gather_launch(processes, source, options, root, default_page)
    least = None if isinstance(inputs.least, Unknown) else judge_inputs(inputs.least, host, root)
    most: Sizing | None = least
    if inputs.most != inputs.least:
        most = None if isinstance(inputs.most, Unknown) else judge_inputs(inputs.most, host, root)
    admissions = _admissions(inputs, most, options, root)
    missed = unread(reading, processes)
    status, reason = _status(inputs, least, most, admissions)
    if missed and status != "fails":
        others = f" (and {len(missed) - 1} more)" if len(missed) > 1 else ""
        status, reason = "unknown", f"{missed[0].text}{others}"
    return LaunchSizing(reading, inputs, least, most, admissions, status, reason, missed)


def _admissions(
    inputs: LaunchInputs, sizing: Sizing | None, options: LaunchOptions, root: Root
) -> tuple[Admission | Unknown, ...]:
    """SGLang's own check, where the launch is to run on this host."""
    if sizing is None or options.available_bytes is not None:
        return ()
    # A decode server has a host pool without HiCache: it keeps retracted requests.
    return tuple(
        admit(process.number, process.server, pools, inputs.sglang, sizing, root)
        for process in inputs.processes
        for pools in (inputs.memory.get(process.number),)
        if process.server is not None
        and pools is not None
        and (process.server.hicache or pools.pools)
    )


def _status(
    inputs: LaunchInputs,
    least: Sizing | None,
    most: Sizing | None,
    admissions: tuple[Admission | Unknown, ...],
) -> tuple[str, str]:
    refused = worst(inputs.findings)
    if refused is not None:
        return "fails", refused.text
    for admission in admissions:
        if isinstance(admission, Admission) and admission.refused:
            return "fails", f"{admission.origin}: ValueError: {admission.refused}"
    if least is None:
        why = inputs.least.reason if isinstance(inputs.least, Unknown) else ""
        return "unknown", why
    if least.status == "fails":
        return "fails", least.reason
    if most is None:
        why = inputs.most.reason if isinstance(inputs.most, Unknown) else ""
        return "unknown", f"the size of the L2 pool is not known: {why}"
    if most.status == least.status:
        return most.status, most.reason
    return "unknown", (
        f"the L2 pool is known between two bounds: {least.status} at the lower, {most.status} at "
        "the upper"
    )
