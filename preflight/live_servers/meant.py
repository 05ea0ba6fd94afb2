"""Compares a launch with what runs: which of its processes run, and which settings differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from checks.framework.finding import Finding, Status, Subject
from checks.framework.pages import Spot
from checks.framework.regex import regex
from checks.framework.unknown import Unknown
from checks.running_processes.processes import pages_by_size
from preflight.base.one_line import shortened
from preflight.command_inputs.reading.understood import ProcessReading, Value, reading_of
from preflight.engines.mooncake.replay import pages_by_spot
from preflight.launches.source import Origin
from preflight.live_servers.comparison import RELEASE, node_findings
from preflight.live_servers.running_launch import NOT_OBSERVED, OF_ANYBODY, RunningServer
from preflight.needs.launch_sizing import LaunchSizing
from preflight.processes.processes import LaunchProcess

LAUNCH = "observe.launch"
# Settings that tell one process from the next of its kind; two that share none are two processes.
_TELLING = (
    *("HTTP port", "RPC port", "service port", "router's HTTP port", "metadata port"),
    *("model_path", "model", "node_rank", "store.local_hostname"),
)
_BY_WORDS = tuple(name for name in _TELLING if not name.startswith("store."))
# Variables that somebody sets for a launch; images set others (CUDA_VERSION, NCCL_VERSION).
_SET = regex(r"(MC|MOONCAKE|SGLANG|SGL|VLLM|LMCACHE)_")
_CALLERS = Origin("environment")
_LONGEST_VALUE = 60
_ADVICE = "Start it anew as the launch says, or write into the launch what is meant."


class MeantProcess(NamedTuple):
    """One process of the launch, and how it was understood."""

    launched: LaunchProcess
    settings: ProcessReading


class Difference(NamedTuple):
    """A setting that differs: its values in the running process and in the launch, and where it is
    set.

    A value is text; "not set" without one.

    Attributes:
        origin: The place in the launch.
    """

    name: str
    running: str
    meant: str
    origin: str


class Matching(NamedTuple):
    """How a running program matches a process of the launch: the settings that differ.

    Attributes:
        left_open: Settings whose value in the launch is not known.
        is_another: The program cannot be this process, as they differ in all settings that tell
            processes apart, such as ports.
    """

    differences: tuple[Difference, ...]
    left_open: tuple[str, ...]
    is_another: bool


def launch_findings(
    launch: LaunchSizing, servers: Sequence[RunningServer], first_process: str | Unknown
) -> Iterator[tuple[RunningServer | None, Finding]]:
    """Yield for each process of ``launch`` whether it runs, and which settings differ.

    Each process is matched with a running program of its kind, the fewest differences first.
    Benchmarks, unknown programs and commands that end are left out. A finding comes with its
    program, None for a process that does not run. A program that is not of the launch gets a
    skipped finding.

    Args:
        first_process: The text of /proc/1/stat, Unknown if /proc hides processes of other users
            (hidepid).
    """
    numbers = {process.number for process in launch.inputs.processes}
    meant = [
        MeantProcess(*both)
        for both in zip(launch.whole, reading_of(launch, "").processes, strict=True)
        if both[0].number in numbers and both[0].kind not in NOT_OBSERVED
        if not both[0].command.ended
    ]
    running = {server.pid: _settings_of(server, server.sizing) for server in servers}
    pairs = [
        # One whose settings are not readable comes after those that agree in all of them.
        (len(compared.differences) + (running[server.pid] is None) / 2, place, server, compared)
        for place, process in enumerate(meant)
        for server in servers
        if server.program is process.launched.kind
        for compared in (_compare(process, server, running[server.pid]),)
    ]
    free = {place: max(1, process.launched.command.copies) for place, process in enumerate(meant)}
    matched: set[int] = set()
    for _, place, server, compared in sorted(pairs, key=lambda pair: pair[:2]):
        if compared.is_another or not free[place] or server.pid in matched:
            continue
        free[place] -= 1
        matched.add(server.pid)
        yield from _of_match(meant[place], server, compared, launch)
    for place, process in enumerate(meant):
        if free[place] == max(1, process.launched.command.copies):
            near = [pair for pair in pairs if pair[1] == place and pair[2].pid not in matched]
            near = [pair for pair in near if pair[3].differences]
            yield None, _of_missing(process, near[0][2:] if near else None, first_process)
    for server in servers:
        if server.pid not in matched:
            subject = Subject(server.name, "process")
            yield server, Finding(LAUNCH, Status.SKIP, subject, text="it is not of this launch")


def _settings_of(
    server: RunningServer, sizing: LaunchSizing | Unknown | None
) -> ProcessReading | None:
    """Return the settings of a program that runs, by ``sizing``; None if this is not known."""
    if sizing is None or isinstance(sizing, Unknown):
        return None
    processes = reading_of(sizing, server.name).processes
    return next((each for each in processes if each.title == server.program.value), None)


def _compare(
    meant: MeantProcess, server: RunningServer, running: ProcessReading | None
) -> Matching:
    """Compare a running program with a process of the launch.

    Args:
        running: The program's settings; without these (None), no difference is returned, and its
            command line alone tells whether it is another process. Settings named ``store.`` are
            returned only if no other setting differs.
    """
    wanted, by_words = meant.settings, _settings_of(server, server.by_words)
    seen, told_by = (running, _TELLING) if running is not None else (by_words, _BY_WORDS)
    telling = [_same_value(_value(wanted, name), _value(seen, name)) for name in told_by if seen]
    known = [same for same in telling if same is not None]
    is_another = bool(known) and not any(known)
    if running is None:
        return Matching((), (), is_another)
    names = sorted(wanted.written | running.written)
    differences, left_open = [], []
    for name, mine, theirs in (
        *((name, _value(wanted, name), _value(running, name)) for name in names),
        *_variables(meant, running),
    ):
        if mine is not None and isinstance(mine.value, Unknown):
            left_open.append(name)
        elif _same_value(mine, theirs) is False:
            written = mine is not None and name not in running.written - wanted.written
            origin = mine.origin if mine and written else str(meant.launched.command.origin)
            differences.append(Difference(name, _value_text(theirs), _value_text(mine), origin))
    # A variable that differs says why a setting of the store does.
    plain = [each for each in differences if not each.name.startswith("store.")]
    return Matching(tuple(plain or differences), tuple(left_open), is_another)


def _value(process: ProcessReading, name: str) -> Value | None:
    return process.settings.get(name) or process.defaults.get(name)


def _same_value(mine: Value | None, theirs: Value | None) -> bool | None:
    """Tell whether two settings are the same; None if one is not known, or both are not set."""
    a, b = (None if side is None else side.value for side in (mine, theirs))
    if isinstance(a, Unknown) or isinstance(b, Unknown) or (a is None and b is None):
        return None
    return bool(a == b or str(a) == str(b))


def _value_text(value: Value | None) -> str:
    if value is None or value.value is None:
        return "not set"
    return shortened(str(value.value), _LONGEST_VALUE)


def _variables(
    meant: MeantProcess, running: ProcessReading
) -> Iterator[tuple[str, Value | None, Value | None]]:
    """Yield (name, value in the launch, value in the running program) of environment variables.

    First the variables that the launch sets. Then variables (MC_, SGLANG_ and the like) that only
    the program has, unless it is meant to run in a container, whose image sets some.
    """
    origins, wanted = meant.launched.command.environment, meant.settings.environment
    for name, value in wanted.items():
        if origins[name].origin != _CALLERS:
            yield name, value, running.environment.get(name)
    for name, value in running.environment.items():
        if name not in wanted and _SET.match(name) and meant.launched.command.container is None:
            yield name, None, value


def _of_match(
    meant: MeantProcess, server: RunningServer, compared: Matching, launch: LaunchSizing
) -> Iterator[tuple[RunningServer, Finding]]:
    """Yield the findings of a program that runs as a process of the launch.

    First a warning for each setting that differs, or one finding: that none does, or that its
    settings are not readable. Then the findings on releases and NUMA nodes.
    """
    subject = Subject(server.name, "process")
    as_meant = f"running as {meant.launched.command.origin} says"
    finding = Finding(LAUNCH, Status.PASS, subject, "running", as_meant)
    for setting, is_now, wanted, origin in compared.differences:
        row = finding._replace(have=f"{setting} {is_now}", need=f"{setting} {wanted}")
        text = f"it runs with {row.have}; {origin}: {wanted}"
        yield server, row.warned(text, _ADVICE)
    sizing = None if server.program in OF_ANYBODY else server.sizing
    if isinstance(sizing, Unknown):
        yield server, finding.undecided(sizing.of("its settings are not readable: "))
    elif not compared.differences:
        left = ", ".join(compared.left_open)
        yield server, finding._replace(text=f"the launch leaves open: {left}" if left else "")
    for each in (*_releases(server, launch, subject), *_nodes(meant, server, launch, subject)):
        yield server, each


def _nodes(
    meant: MeantProcess, server: RunningServer, launch: LaunchSizing, subject: Subject
) -> Iterator[Finding]:
    """Judge whether a program's huge pages are on the NUMA nodes to which the launch binds it by a
    command in front (numactl), which no running process shows.

    If the program's own command line binds it, nothing is yielded here: ``comparison`` judges that.
    """
    predicted = server.predicted_pages
    if isinstance(predicted, Unknown) or any(spot.node is not None for spot in predicted):
        return
    pages: Counter[Spot] = Counter()
    for replay in () if launch.most is None else launch.most.asked:
        if replay.process.id.command == meant.launched.number:
            pages.update(pages_by_spot(replay.allocations, replay.process.among))
    memories = [holding.memory for holding in server.holdings]
    mapped, on_node = pages_by_size(tuple(m for m in memories if not isinstance(m, Unknown)))
    for size in mapped:
        yield from node_findings(subject, size, on_node, pages)


def _releases(server: RunningServer, launch: LaunchSizing, subject: Subject) -> Iterator[Finding]:
    """Judge whether the releases of Mooncake and SGLang that the launch names are those that run.

    A product without a named release, or of which no release is seen, is left out.
    """
    for product in ("mooncake", "sglang"):  # with which the name of a distribution begins
        judged = launch.inputs.releases.get(f"{product}_version")
        versions = [version for name, version in server.releases if name.startswith(product)]
        if judged is None or judged.assumed or not versions:
            continue
        have, need = f"{product} {versions[0]}", f"{product} {judged.value}"
        finding = Finding(RELEASE, Status.PASS, subject, have, need)
        text = f"it runs another release than the launch was judged for ({judged.origin})"
        advice = f"Judge it as it runs: check --{product}-version {versions[0]}."
        yield finding if versions[0] == judged.value else finding.warned(text, advice)


def _of_missing(
    meant: MeantProcess, near: tuple[RunningServer, Matching] | None, first_process: str | Unknown
) -> Finding:
    """Return the finding on a process of the launch that does not run; unknown if /proc hides
    processes.

    Args:
        near: A program of the same kind, with its differences, to name; None without one.
    """
    subject = Subject(meant.launched.name, "launch")
    finding = Finding(LAUNCH, Status.PASS, subject, "not running", "running")
    if isinstance(first_process, Unknown):
        return finding.undecided(
            first_process.of("processes of other users are hidden (hidepid): ")
        )
    text = "no process of this host is it"
    if near is not None:
        shown = (f"{each.name} {each.running}" for each in near[1].differences[:4])
        text = f"{text}; {near[0].name} is of its kind, with {', '.join(shown)}"
    advice = "Read its log. In a container, processes of that container alone are seen."
    return finding.warned(text, advice)
