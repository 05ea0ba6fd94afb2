"""Runs ``mooncake-preflight fit``: reads the host once, solves, edits the launch, prints."""

from __future__ import annotations

from typing import NamedTuple

from checks.base.finding import Kind, Setting, Status
from checks.base.unknown import Unknown
from checks.run.facts import READERS
from checks.run.judging import every_check
from checks.run.reading import read_facts
from preflight.base.output import say, say_json
from preflight.base.usage_error import UsageError
from preflight.fit.hints import hints
from preflight.fit.judged_values import GATES, HostState, LaunchState
from preflight.fit.launch_edit import Edited, edited
from preflight.fit.launch_texts import launch_texts
from preflight.fit.launch_values import knobs, with_values
from preflight.fit.not_described import is_not_described, tolerant
from preflight.fit.records import Answer, Fitted, Goal
from preflight.fit.solver import solve
from preflight.inputs.host_source import Host, LaunchWords, launch_of, open_host, size_within
from preflight.settings.commands import Context, commands, context_of

EXIT_OTHERS = 1
EXIT_NOTHING = 2
EXIT_UNKNOWN = 3


class FitRequest(NamedTuple):
    """What the command line asks for. described: memory, GPUs, NICs and NUMA nodes as given."""

    launch: LaunchWords
    root: str
    described: tuple[int | None, str | None, str | None, int | None]
    goal: str
    keep_bytes: int
    write: bool
    as_json: bool
    timeout_seconds: float
    color: str


def run_fit(request: FitRequest) -> int:
    """Print the answer; returns the exit code. Raises UsageError."""
    host, assumptions = _host(request)
    if assumptions:
        request = request._replace(launch=_with_gpu(request.launch, request.described[1]))
    found = fitted(request, host, assumptions)
    if isinstance(found, Unknown):
        return _say_unknown(request, found)
    found = found._replace(hints=hints(found.state, found.machine, found.answer))
    # Half of the values would be another launch: neither the old one nor the one that fits.
    if request.write and found.edited is not None and not found.edited.advice:
        from preflight.fit.write_launch import write_edits

        found = found._replace(written=write_edits(found.edited.edits))
    if request.as_json:
        from preflight.fit.to_json import fit_object

        say_json(fit_object(found))
    else:
        from preflight.base.output import columns, painter
        from preflight.fit.to_text import fit_text

        say(fit_text(found, painter(request.color), columns()), color=True)
    return found.exit_code


def _host(request: FitRequest) -> tuple[Host, tuple[str, ...]]:
    if all(value is None for value in request.described):
        return open_host(request.root), ()
    from preflight.fit.described_host import described_host

    if request.root != "/":
        raise UsageError(
            f"--root {request.root} is a host, and --memory, --gpus, --nics and --numa describe "
            "another: give the one or the other"
        )
    return described_host(*request.described)


def _with_gpu(words: LaunchWords, gpus: str | None) -> LaunchWords:
    """With the memory of the GPU that is described, where none is given."""
    from preflight.fit.described_host import gpu_bytes

    size = None if gpus is None or not words.words else gpu_bytes(gpus)
    return words if words.gpu_bytes is not None else words._replace(gpu_bytes=size)


def fitted(request: FitRequest, host: Host, assumptions: tuple[str, ...] = ()) -> Fitted | Unknown:
    """The answer as data; Unknown where the launch was not read in time."""
    sized = size_within(request.launch, host, request.timeout_seconds)
    if isinstance(sized, Unknown):
        return sized
    found = None if sized is None else launch_of(request.launch, host)
    if sized is None or found is None:
        raise UsageError("fit is about a launch: give a script, or a command after --")
    launch, options = found
    if request.write and (len(request.launch.words) != 1 or request.launch.is_command):
        raise UsageError("--write is for a launch that is a file: give the script or the manifest")
    facts = read_facts(host.root, sized.needs, request.timeout_seconds, READERS)
    sizes = knobs(launch.reading, sized.sizing.inputs.processes)
    state = LaunchState(launch, options, sizes)
    checks = list(every_check())
    if assumptions:
        _, gpus, nics, _ = request.described
        checks = tolerant(checks, GATES, gpus is not None, nics is not None)
    machine = HostState(host.root, facts, checks, request.keep_bytes)
    answer = solve(state, machine, Goal(request.goal))
    if assumptions:
        answer = _of_description(answer, machine)
    changes, command = None, ""
    if answer.fits is not None:
        changes, command = _edited(request, state, host, answer)
    return Fitted(
        launch.name,
        host.name,
        answer,
        request.keep_bytes,
        changes,
        (),
        command,
        _host_commands(answer, context_of(facts)),
        assumptions,
        state,
        machine,
        _exit_code(answer),
    )


def _of_description(answer: Answer, machine: HostState) -> Answer:
    """Without what checks of the host miss in a description, but for devices that it leaves out."""
    asked = {check.id for check, _ in machine.checks}
    kept = [
        found
        for found in answer.beside
        if found.status is Status.FAIL or found.check not in asked or is_not_described(found)
    ]
    return answer._replace(beside=tuple(kept))


def _exit_code(answer: Answer) -> int:
    if answer.fits is None and not answer.reason:
        return EXIT_NOTHING
    if answer.fits is None or answer.unknown:
        return EXIT_UNKNOWN
    if any(found.status is Status.FAIL for found in answer.beside):
        return EXIT_OTHERS
    return EXIT_UNKNOWN if any(map(is_not_described, answer.beside)) else 0


def _edited(
    request: FitRequest, state: LaunchState, host: Host, answer: Answer
) -> tuple[Edited | None, str]:
    """The launch's files with the new values, or the command line with them."""
    words = request.launch.words
    changed = with_values(state.launch.reading, state.launch.read_file, answer.sizes, answer.values)
    if words == (state.launch.name,):  # a file is called as it was given
        texts = launch_texts(words[0], request.launch.env_files, host.environment, host.root.live)
        if texts is not None:
            return edited(texts, answer.sizes, answer.values), ""
    from preflight.fit.launch_edit import by_hand
    from preflight.fit.launch_line import command_line

    line = command_line(state.launch.reading, changed.reading) if len(words) > 1 else ""
    if line:
        return None, line
    return by_hand(state.launch.reading, answer.sizes, answer.values), ""


def _host_commands(answer: Answer, context: Context) -> tuple[str, ...]:
    """What sets the pools that have to grow."""
    from preflight.settings.targets import NR_HUGEPAGES

    if answer.fits is None:
        return ()
    settings = []
    for target in answer.fits.pools:
        now = target.now_pages or 0
        if target.pages <= now:
            continue
        whole = target.node is None and target.page_bytes == answer.fits.needs.default_page_bytes
        kind, name = (Kind.SYSCTL, NR_HUGEPAGES) if whole else (Kind.SYSFS, target.file)
        settings.append(Setting(kind, name, str(target.pages), str(now)))
    return commands(settings, context)


def _say_unknown(request: FitRequest, why: Unknown) -> int:
    if request.as_json:
        from preflight.base.error_object import error_object
        from preflight.fit.to_json import SCHEMA

        say_json(error_object(SCHEMA, EXIT_UNKNOWN, why.reason))
    else:
        say(f"UNKNOWN: {why.reason}")
    return EXIT_UNKNOWN
