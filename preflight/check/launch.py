"""What the launch itself shows, as findings: rules, misreadings, SGLang's own gate."""

from __future__ import annotations

from collections.abc import Iterator

from checks.base.finding import Check, Consequence, Evidence, Finding, Status
from checks.base.unknown import Unknown
from preflight.check.store import KEYS, key_findings
from preflight.processes.container_limits import unknown_settings
from preflight.rules.rules import Finding as RuleFinding
from preflight.rules.rules import Severity
from preflight.sizing.source_gate import Admission
from preflight.sizing.source_sizing import SourceSizing

_STATUS = {Severity.FAIL: Status.FAIL, Severity.WARN: Status.WARN, Severity.NOTE: Status.PASS}

_LESS_L2 = "less --hicache-size or --hicache-ratio, or fewer ranks"
GATE = Check(
    "sglang.admission-gate",
    "Does SGLang's own check of host memory admit the L2 pools?",
    Consequence.WILL_NOT_START,
    "Before each pool SGLang compares its size with what is left (MemAvailable, or the memory "
    "cgroup's headroom, less 10 GiB) divided by the ranks on the host, and stops with ValueError: "
    "Not enough host memory available. Reserved huge pages are not part of MemAvailable, and the "
    "check does not know that the pool will lie on them: every page that is reserved for the pool "
    "makes it less likely that the pool is admitted. On some hosts no number of pages both "
    "suffices and is admitted.",
    (
        (Status.PASS, "every pool of every server is admitted"),
        (Status.WARN, "the slowest rank may be refused, once the others have taken their pools"),
        (Status.FAIL, "a pool is refused, with the message that the server prints"),
        (Status.UNKNOWN, "the pools, or the memory that is available, are not known"),
        (Status.SKIP, "no server of the launch has a hierarchical cache on this host"),
    ),
    f"{_LESS_L2}, or another number of huge pages: the finding names the interval of nr_hugepages "
    "that suffices and is admitted",
    "SGLang mem_cache/pool_host/base.py and mem_cache/host_memory.py, 0.5.2 to 0.5.23; SGLang "
    "#34972, #40135",
    (),
)
SIZES = Check(
    "launch.sizes",
    "Are all sizes of the launch known?",
    Consequence.WILL_NOT_START,
    "A variable that nothing sets, or a model whose geometry is not known, leaves the size of a "
    "pool open. What depends on it is unknown, never passed.",
    (
        (Status.PASS, "every size is known, or bounded from both sides"),
        (Status.UNKNOWN, "a number that decides is not known; the text names it"),
    ),
    "set the variable that is named, or give --model-config, --gpu-memory",
    "the launch itself",
    (),
)
MAPPING = Check(
    "launch.cannot-map",
    "Can what the launch asks for be mapped at all, on any host?",
    Consequence.WILL_NOT_START,
    "Some sizes fail whatever the host has: a segment on regular pages below 16 MiB, for one.",
    (
        (Status.PASS, "nothing that is asked for is impossible"),
        (Status.FAIL, "a mapping fails with the error that is shown"),
    ),
    "change the size that is named",
    "the replay of Mooncake's allocations, held against the real library",
    (),
)
MISREAD = Check(
    "launch.misread",
    "Are the launch and its environment read as they were meant?",
    Consequence.DEGRADED,
    "A comment behind the backslash of a continued line ends the command there, numactl takes an "
    "assignment behind it for the program, docker keeps the quotes of an env file: what starts is "
    "not what was written. Mooncake reads its switches and sizes in its own way: a switch that is "
    "set to 0 is on, a size that does not parse becomes a default. Each misreading is one finding, "
    "named by its note.",
    (
        (Status.PASS, "the launch and every value are read as they were written"),
        (Status.WARN, "a command or a value becomes something else; the text says what"),
        (Status.FAIL, "the shell or a wrapper fails before the program starts"),
    ),
    "write it as the text says; docs/launch.md has the notices by id",
    "bash; numactl; docker; Mooncake utils.h, mmap_arena.cpp, local_hot_cache.cpp",
    (),
    or_else=(Consequence.WILL_NOT_START,),
)
UNUSED = Check(
    "launch.unused",
    "Is everything that the launch asks for used?",
    Consequence.DEGRADED,
    "An arena that nothing creates, or a pool that stays on regular pages although huge pages were "
    "asked for, costs nothing and gives nothing: the launch runs, slower than it was meant to.",
    (
        (Status.PASS, "everything that is asked for is used"),
        (Status.WARN, "something is asked for and never used; the text says why"),
    ),
    "drop the setting, or set what it depends on",
    "Mooncake utils.cpp, real_client.cpp",
    (),
)
ASSUMED = Check(
    "launch.assumed",
    "Was anything assumed that decides the answer?",
    Consequence.DEGRADED,
    "Where the launch and the host leave something open (the version of a program that is not "
    "installed here, the NUMA node of a rank), the model takes what is usual and says so.",
    (
        (Status.PASS, "nothing was assumed"),
        (Status.WARN, "something was; the text says what, and how to give it"),
    ),
    "give what the text names",
    "this program",
    (),
)
LAUNCH_CHECKS = (SIZES, MAPPING, MISREAD, UNUSED, ASSUMED, GATE, KEYS)
# Notes of the sizing that checks of the host answer more fully.
_HOST_NOTES = (
    "nic-nodes-unknown",
    "device-missing",
    "rdma-without-device",
    "mooncake-installed-twice",
)
# Notices of the readers that say that something else runs than was meant, and those of them after
# which nothing runs at all. The other notices say what was not read.
_READ_OTHERWISE = (
    "assignment-after-wrapper",
    "byte-order-mark",
    "carriage-return",
    "container-refused",
    "continuation-broken",
    "env-file-name",
    "env-file-quotes",
    "no-shell",
    "not-a-program",
    "program-behind-mark",
    "reference-unset",
    "sudo-environment",
    "unterminated",
    "value-not-text",
)
_NOTHING_RUNS = (
    "assignment-after-wrapper",
    "container-refused",
    "program-behind-mark",
    "unterminated",
    "value-not-text",
)
_ASSUMPTIONS = ("rank-nodes-assumed", "mooncake-newer", "mooncake-version-unread")


def launch_findings(sizing: SourceSizing) -> list[Finding]:
    """All findings that need no reading of the host beyond what the sizing did."""
    return [
        *_sizes(sizing),
        *_mapping(sizing),
        *_reading(sizing),
        *_notes(sizing),
        *(_rule(found) for found in sizing.inputs.findings),
        *_gate(sizing),
        *key_findings(sizing),
    ]


def _rule(found: RuleFinding) -> Finding:
    rule = found.rule
    origin = "launch" if found.origin is None else str(found.origin)
    return Finding(
        rule.id,
        _STATUS[rule.severity],
        origin,
        text=f"{found.text.rstrip('.')}: {rule.consequence}",
        evidence=(Evidence(origin, found.text),),
        advice=rule.remedy,
    )


def _sizes(sizing: SourceSizing) -> Iterator[Finding]:
    for bound in (sizing.inputs.least, sizing.inputs.most):
        if isinstance(bound, Unknown):
            yield Finding(SIZES.id, Status.UNKNOWN, "launch", text=bound.reason)
            return
    unread = [
        (str(process.command.origin), name, why)
        for process in sizing.inputs.processes
        for name, why in unknown_settings(process.command)
    ]
    for origin, name, why in dict.fromkeys(unread):
        yield Finding(SIZES.id, Status.UNKNOWN, f"{name} of {origin}", text=why.reason)
    if not unread:
        yield Finding(SIZES.id, Status.PASS, "launch", have="every size known")


def _mapping(sizing: SourceSizing) -> Iterator[Finding]:
    shown = sizing.shown
    if shown is None:
        return
    broken = [process for process in shown.asked if process.failure is not None]
    for process in broken:
        failure = process.failure
        if failure is not None:
            text = f"{failure.what}: {failure.error}"
            yield Finding(MAPPING.id, Status.FAIL, process.process.name, text=text)
    if not broken:
        yield Finding(MAPPING.id, Status.PASS, "launch", have="nothing impossible")


def _reading(sizing: SourceSizing) -> Iterator[Finding]:
    """The notices of the readers that say that a shell takes the launch for another."""
    for note in dict.fromkeys(sizing.reading.notes):
        if note.id in _READ_OTHERWISE:
            subject = f"{note.id}, {note.origin}"
            found = Finding(MISREAD.id, Status.WARN, subject, text=note.text)
            if note.id in _NOTHING_RUNS:
                worse = Consequence.WILL_NOT_START
                found = found._replace(status=Status.FAIL, consequence=worse)
            yield found


def _notes(sizing: SourceSizing) -> Iterator[Finding]:
    shown = sizing.shown
    if shown is None:
        return
    given = [note for note in shown.inputs.notes if note.id not in _HOST_NOTES]
    by_check = (
        (MISREAD, [note for note in given if note.id not in _ASSUMPTIONS]),
        (UNUSED, list(shown.unused)),
        (ASSUMED, [note for note in given if note.id in _ASSUMPTIONS]),
    )
    for check, notes in by_check:
        for note in notes:
            yield Finding(check.id, Status.WARN, note.id, text=note.text)
        if not notes and not (check is MISREAD and any(_reading(sizing))):
            yield Finding(check.id, Status.PASS, "launch", have="nothing found")


def _gate(sizing: SourceSizing) -> Iterator[Finding]:
    if not sizing.admissions:
        text = "no server with a hierarchical cache whose sizes are known"
        yield Finding(GATE.id, Status.SKIP, "launch", text=text)
    for admission in sizing.admissions:
        if isinstance(admission, Unknown):
            yield Finding(GATE.id, Status.UNKNOWN, "server", text=admission.reason)
        else:
            yield _admission(admission)


def _admission(admission: Admission) -> Finding:
    said = admission.refused or admission.late
    need, pages = "", admission.pages
    if pages is not None:
        most = "any" if pages.most is None else str(pages.most)
        span = "no number" if pages.empty else f"{pages.least} to {most}"
        need = f"huge pages that suffice and are admitted: {span}; {pages.reason}"
    if said is None:
        return Finding(GATE.id, Status.PASS, admission.origin, have="admitted", need=need)
    status = Status.FAIL if admission.refused else Status.WARN
    when = "" if admission.refused else "once the other ranks have their pools, "
    return Finding(
        GATE.id,
        status,
        admission.origin,
        have="refused",
        need=need,
        text=f"{when}the server prints ValueError: {said}",
        advice=GATE.remedy if pages is not None else _LESS_L2,
    )
