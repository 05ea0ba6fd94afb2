"""What the launch itself shows, as findings: rules, misreadings, SGLang's own gate."""

from collections.abc import Callable, Iterable, Iterator
from itertools import combinations

from checks.framework.finding import (
    Consequence,
    Finding,
    Status,
    Subject,
    passed,
    skip,
    unknown_finding,
)
from checks.framework.problem import Match, Problems
from checks.framework.units import format_bytes
from checks.framework.unknown import Unknown
from checks.hugetlb.targets import FIT
from checks.run_checks.facts import Facts
from preflight.engines.programs.store_environment import Note
from preflight.engines.sglang.pools import ServerMemory
from preflight.launch_problems.rules.launch_rules import problems_of
from preflight.needs.launch_sizing import Admission, LaunchSizing
from preflight.processes.containers import unknown_settings
from preflight.processes.host_groups import foreground_server
from preflight.processes.processes import LaunchProcess
from preflight.processes.unread import not_set
from preflight.verdict.store_keys import Meeting, StoreKeys, compare_keys, launch_keys

SIZES, NOT_READ, GATE = "launch.sizes", "launch.not-read", "sglang.admission-gate"
# What is judged of the launch before the rules, and after them.
CHECKS, OF_SERVERS = Problems("pages"), Problems("pages")
_LESS_L2 = "lower --hicache-size or --hicache-ratio, or run fewer ranks"
_AS_MEANT = "write it the way that it is read, or remove it"
# Notes of the sizing that checks of the host answer more fully.
_HOST_NOTES = (
    "nic-nodes-unknown device-missing rdma-without-device mooncake-installed-twice".split()
)
# Notices of the readers that say that something else runs than was meant, and those of them after
# which nothing runs at all. The other notices say what was not read.
_NOTHING_RUNS = (
    "assignment-after-wrapper container-refused program-behind-mark unterminated value-not-text"
).split()
_READ_OTHERWISE = (
    "byte-order-mark carriage-return continuation-broken env-file-name env-file-quotes no-shell "
    "not-a-program reference-unset sudo-environment"
).split() + _NOTHING_RUNS
_ASSUMPTIONS = (
    "rank-nodes-assumed mooncake-newer mooncake-own-build mooncake-version-unread sglang-newer "
    "sglang-own-build sglang-version-unread"
).split()


def launch_findings(
    sizing: LaunchSizing,
    facts: Facts | None = None,
    takes: Callable[[str], bool] = lambda _: True,
) -> list[Finding]:
    """Judge the launch itself, without reading more of the host.

    Args:
        facts: Those of the host where it is judged; without them no rule is harmless.
        takes: Tells which problems are judged, by their ids.
    """

    def judged(checks: Problems) -> Iterator[Finding]:
        for check in checks.problems:
            if takes(check.id):
                yield from check.judge({"sizing": sizing}, subject="launch")

    rules = (_of_rule(match, facts) for match in problems_of(sizing.inputs, takes))
    return [*judged(CHECKS), *rules, *judged(OF_SERVERS)]


def _of_rule(match: Match, facts: Facts | None) -> Finding:
    """Return what a rule found as a finding, which passes where it does no harm on the host."""
    if facts and match.harmless and (why := match.harmless(facts)):
        return passed(match.finding.subject, why)._replace(check=match.id)
    return match.finding


@CHECKS(SIZES)
def _sizes(sizing: LaunchSizing) -> Iterator[Finding]:
    """Yield an unknown finding for each setting of a process that could not be read, or one pass.

    If a bound of the sizes is unknown, that is the only finding.
    """
    for bound in (sizing.inputs.least, sizing.inputs.most):
        if isinstance(bound, Unknown):
            yield unknown_finding("launch", bound)
            return
    unread = [
        (str(process.command.origin), name, why)
        for process in sizing.inputs.processes
        for name, why in unknown_settings(process.command)
    ]
    for origin, name, why in dict.fromkeys(unread):
        yield unknown_finding(f"{name} of {origin}", why)
    if not unread:
        yield passed("launch", "every size known")


@CHECKS(NOT_READ)
def _not_read(sizing: LaunchSizing) -> Iterator[Finding]:
    """Yield an unknown finding for each part of the launch that was not read.

    Parts that ``_sizes`` names already are left out.
    """
    bounds = (sizing.inputs.least, sizing.inputs.most)
    by_sizes = {bound.cause for bound in bounds if isinstance(bound, Unknown)}  # by launch.sizes
    unset = (each for each in not_set(sizing.inputs.processes) if each.cause not in by_sizes)
    # What is not set says more than its cause: what it decides.
    more = (each._replace(cause="") for each in unset)
    for each in dict.fromkeys((*sizing.unread, *more)):
        subject = f"{each.what} ({each.origin})"
        finding = Finding("", Status.UNKNOWN, subject, text=each.why)
        yield finding._replace(advice=each.advice, sets=each.sets, tells_cause=each.cause)


@CHECKS("launch.cannot-map")
def _mapping(sizing: LaunchSizing) -> Iterator[Finding]:
    """Yield a failure for each mapping that Mooncake refuses with any number of pages, or one pass.

    Nothing if the sizes are not known.
    """
    shown = sizing.shown
    if shown is None:
        return
    broken = [(each.process.name, each.failure) for each in shown.asked if each.failure]
    for name, failure in broken:
        text = f"{failure.what}: {failure.error}"
        yield Finding("", Status.FAIL, Subject(name, "process"), text=text)
    if not broken:
        yield passed("launch", "nothing impossible")


def _reading(sizing: LaunchSizing) -> Iterator[Finding]:
    """Yield a finding for each part that a shell reads otherwise than its author meant."""
    for note in dict.fromkeys(sizing.reading.notes):
        if note.id in _READ_OTHERWISE:
            subject = f"{note.id} ({note.origin})"
            advice = note.advice or _AS_MEANT
            finding = Finding("", Status.WARN, subject, text=note.text, advice=advice)
            if note.id in _NOTHING_RUNS:
                worse = Consequence.WILL_NOT_START
                finding = finding._replace(status=Status.FAIL, consequence=worse)
            yield finding


def _behind(sizing: LaunchSizing) -> Iterator[Finding]:
    """Yield a warning if an engine waits for one that never ends, and both take one port or GPU."""
    waiting = foreground_server(sizing.whole)
    if waiting is not None and waiting.shared_resources:
        first, second = waiting.first.command.origin, waiting.later[0].command.origin
        advice = f"end the command at {first} with &, and give {second} its own port and GPUs "
        advice += "(--port, --base-gpu-id, CUDA_VISIBLE_DEVICES), where both are to run"
        text = f"{waiting.text}; if both are to run, both take {waiting.shared_resources}"
        yield Finding("", Status.WARN, f"foreground ({first})", text=text, advice=advice)


@CHECKS("launch.misread")
def _misread(sizing: LaunchSizing) -> Iterator[Finding]:
    """Yield what is read otherwise than it was meant, or a pass if nothing is."""
    findings = [*_reading(sizing), *_behind(sizing)]
    notes = [note for note in _shown_notes(sizing) if note.id not in _ASSUMPTIONS]
    findings += _warnings(notes, _AS_MEANT)
    yield from findings or _nothing_found(sizing)


@CHECKS("launch.unused")
def _unused(sizing: LaunchSizing) -> Iterator[Finding]:
    notes = [] if sizing.shown is None else sizing.shown.unused
    yield from _warnings(notes) or _nothing_found(sizing)


@CHECKS("launch.assumed")
def _assumed(sizing: LaunchSizing) -> Iterator[Finding]:
    notes = [note for note in _shown_notes(sizing) if note.id in _ASSUMPTIONS]
    yield from _warnings(notes) or _nothing_found(sizing)


def _shown_notes(sizing: LaunchSizing) -> list[Note]:
    shown = sizing.shown
    notes = sizing.inputs.release_notes if shown is None else shown.inputs.notes
    return [note for note in notes if note.id not in _HOST_NOTES]


def _warnings(notes: Iterable[Note], advice: str = "") -> list[Finding]:
    return [Finding("", Status.WARN, note.id, text=note.text, advice=advice) for note in notes]


def _nothing_found(sizing: LaunchSizing) -> list[Finding]:
    """Return a pass; nothing if the sizes are not known."""
    return [] if sizing.shown is None else [passed("launch", "nothing found")]


@OF_SERVERS(GATE)
def _gate(sizing: LaunchSizing) -> Iterator[Finding]:
    """Judge whether each server passes SGLang's own check of host memory."""
    if not sizing.admissions:
        text = "no server with a hierarchical cache whose sizes are known"
        yield skip(text, "launch")
    for admission in sizing.admissions:
        if isinstance(admission, Unknown):
            yield unknown_finding("server", admission)
        else:
            yield _admission(admission)


def _admission(admission: Admission) -> Finding:
    """Judge whether SGLang's check of host memory admits one server.

    A refusal at once is a failure; a refusal only after other ranks have their pools is a warning.
    """
    error = admission.refused or admission.late
    need, pages = "", admission.pages
    if pages is not None:
        need = "less L2" if pages.empty else f"{pages.span} huge pages"
        need += f": {pages.reason}"
    if error is None:
        return passed(admission.origin, "admitted", need)
    status = Status.FAIL if admission.refused else Status.WARN
    when = "" if admission.refused else "once the other ranks have their pools, "
    text = f"{when}the server prints ValueError: {error}"
    advice = _LESS_L2 if pages is None or pages.empty else OF_SERVERS.problems[0].page.remedy
    gate = Finding("", status, admission.origin, need=need, text=text)
    return gate._replace(advice=advice, asks=FIT)


# Masters were seen killed for want of memory with 25 to 50 million keys (Mooncake #3452).
MOST_KEYS = 10_000_000

_MEET = (
    "start both alike, or give each a store or tenant of its own: mooncake-preflight read --keys"
)
_MOST_NAMES = 4  # of processes in one subject
_NO_SIZES = "the launch's sizes are not known"


@OF_SERVERS("store.keys")
def key_findings(sizing: LaunchSizing) -> Iterator[Finding]:
    """Yield a finding about the number of keys for each SGLang server with a store.

    Then yield the findings about processes that share a store and a model. If nothing was to judge:
    one skip.
    """
    servers = [p for p in sizing.inputs.processes if p.server and p.server.store]
    shown, most = sizing.shown, sizing.inputs.most
    segments: int | Unknown = most if isinstance(most, Unknown) else Unknown(_NO_SIZES)
    if shown is not None:
        members = shown.inputs.launch.processes
        segments = sum(client.segment_bytes for each in members for client in each.clients)
    for process in servers:
        yield _keys(process, sizing.inputs.memory.get(process.number), segments)
    pairs = list(_pairs(sizing))
    yield from pairs
    if not servers and not pairs:
        yield skip("no server of it has a store", "launch")


_MEETING = {
    Meeting.EQUAL: Status.PASS,
    Meeting.NEVER: Status.WARN,
    Meeting.COLLIDE: Status.WARN,
    Meeting.UNKNOWN: Status.UNKNOWN,
}


def _pairs(sizing: LaunchSizing) -> Iterator[Finding]:
    """Yield how the keys of processes with one model in one store meet.

    Processes with equal settings are a group: one finding for each group of several, and one for
    each two groups.
    """
    kinds: dict[str, list[StoreKeys]] = {}
    for keys in launch_keys(sizing):
        kinds.setdefault(repr((keys.model, *keys[1:])), []).append(keys)
    alike = [(same_keys, same_keys) for same_keys in kinds.values() if len(same_keys) > 1]
    for ours, others in (*alike, *combinations(kinds.values(), 2)):
        match = compare_keys(ours[0], others[-1])
        status = _MEETING.get(match.verdict)
        if status is None or not match.first.model or match.first.model != match.second.model:
            continue
        names = [keys.process.name for keys in (ours if ours is others else [*ours, *others])]
        first = ", ".join(names[:-1]) if len(names) <= _MOST_NAMES else names[0]
        last = names[-1] if len(names) <= _MOST_NAMES else f"{len(names) - 1} more"
        have = f"keys: {match.verdict.value}"
        text = "; ".join(match.reasons)
        advice = "" if status is Status.PASS else _MEET
        yield Finding("", status, f"{first} and {last}", have, text=text, advice=advice)


def _keys(process: LaunchProcess, memory: ServerMemory | None, segments: int | Unknown) -> Finding:
    """Judge how many keys a server can put into the store.

    Args:
        memory: None if not known.
        segments: Bytes of all store clients of the launch.
    """
    server = process.server
    subject = str(process.command.origin)
    page = server.value("page_size") if server is not None else None
    host_pool = next((p for p in memory.pools if p.tokens), None) if memory else None
    if isinstance(page, Unknown):
        return unknown_finding(subject, page)
    if server is not None and server.links:
        text = "an object is a page of the cache on the GPU: how many there will be is not computed"
        return skip(text, subject)
    if host_pool is None:
        sizes = Unknown(_NO_SIZES if memory is None else memory.why)
        missing = None if memory is None else memory.missing
        return unknown_finding(subject, sizes if missing is None else missing)
    if isinstance(segments, Unknown):
        return unknown_finding(subject, segments)
    if not segments:
        text = "this host contributes no segment: its clients are elsewhere"
        return skip(text, subject)
    object_bytes = host_pool.object_bytes(page)
    keys = segments // max(1, object_bytes)
    have, need = f"{keys:,} keys", f"at most {MOST_KEYS:,}"
    formula = f"{format_bytes(segments)} of segments / {format_bytes(object_bytes)} an object"
    if keys <= MOST_KEYS:
        return passed(subject, have, need, formula)
    text = "the master holds them all in memory when the store is full"
    many = Finding("", Status.WARN, subject, have, need, formula, text)
    return many._replace(advice="use a larger --page-size")
