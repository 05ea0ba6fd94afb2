"""A launch's allocations, made for real, held against what was predicted, and taken back.

The answer is the verdict, then each step, predicted and measured; as text and as JSON.
"""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from checks.framework.needs import LaunchNeeds
from checks.framework.pages import Spot
from checks.framework.root import Root
from checks.framework.units import GIB, format_bytes, format_page_size
from checks.framework.unknown import Unknown, or_unknown, require
from checks.releases.mooncake import mooncake_release
from checks.run_checks.facts import Facts, read_facts
from preflight.base.output import Progress, columns, painter
from preflight.base.plain_data import fields, plain
from preflight.base.text import fitted_table
from preflight.base.usage_error import UsageError
from preflight.base.within import limit_seconds
from preflight.benchmark.rehearsal.plan import make_plan, scaled_launch
from preflight.benchmark.rehearsal.programs import RehearsalError, is_error
from preflight.benchmark.rehearsal.records import (
    Library,
    RehearsalPlan,
    RehearsalRun,
    RehearsalStep,
    StepResult,
    find_library,
)
from preflight.benchmark.rehearsal.run import pages_of_others, run
from preflight.command_inputs.host_source import Host, Sized, open_host, size_within
from preflight.command_inputs.launch_words import LaunchWords
from preflight.engines.mooncake.allocations import Allocation, Backing, OnShortage, Outcome
from preflight.engines.mooncake.replay import pages_by_spot
from preflight.needs.launch_needs import launch_needs
from preflight.needs.sizing import judge_inputs

# To read the launch and the host; a step has a limit of its own.
READ_SECONDS = 30.0
# What the checks of registration ask of a host.
_TOPICS = ("system", "limits", "rdma")


def rehearse(
    launch: LaunchWords, python: str | None, scale: int, step_seconds: float
) -> RehearsalAnswer:
    """Rehearse a launch on this host and return the answer; all memory is given back.

    Args:
        python: The interpreter that has Mooncake; None for the running one.
        scale: Divides every size.
        step_seconds: The limit of each step.

    Raises:
        UsageError: Without a launch.
    """
    if not launch.words:
        raise UsageError("give the launch: a script, or a command after --")
    prepared = _prepare_launch(launch, python, scale)
    if isinstance(prepared, Unknown):
        return RehearsalAnswer("unknown", prepared.reason)
    root, plan, progress = Root(), prepared.plan, Progress()
    warnings = pages_of_others(root)
    try:
        done = run(plan, root, step_seconds, progress.show)
    except (RehearsalError, OSError) as error:
        return RehearsalAnswer("unknown", str(error), plan=plan)
    finally:
        progress.clear()
    return answer_of(prepared, done, warnings)


class Preparation(NamedTuple):
    """A plan that is ready to run.

    Attributes:
        needs, facts: Of the launch that is run and of the host, for the checks' findings; facts are
            None without RDMA.
    """

    plan: RehearsalPlan
    needs: LaunchNeeds | None = None
    facts: Facts | None = None


@or_unknown
def _prepare_launch(launch: LaunchWords, python: str | None, scale: int) -> Preparation | Unknown:
    """Size the launch for the installed library and plan the rehearsal; Unknown if that fails."""
    library = require(find_library(python))
    try:
        mooncake_release(library.version)
    except ValueError as error:
        return Unknown(f"{library.name}: {error}")
    host = open_host("/")
    of_release = launch._replace(mooncake_version=library.version)
    sized = require(size_within(of_release, host, limit_seconds(READ_SECONDS)))
    assert sized is not None
    return prepare(sized, host, library, scale)


def prepare(sized: Sized, host: Host, library: Library, scale: int) -> Preparation | Unknown:
    """Plan the rehearsal of a sized launch; Unknown, with the reason, if it cannot be rehearsed.

    Args:
        scale: Divides every size; 1 for full size.
    """
    written = sized.sizing
    if isinstance(written.inputs.most, Unknown):
        return Unknown(f"the launch's sizes are not known: {written.inputs.most.reason}")
    if written.shown is None or not written.shown.inputs.launch.processes:
        return Unknown("the launch maps no memory on this host: there is nothing to rehearse")
    unable = [each.name for each in written.shown.inputs.launch.processes if each.own_pools]
    if unable:
        return Unknown(f"{unable[0]} has a pool that it maps itself, which is not rehearsed")
    small, needs, facts, most = written, sized.needs, None, written.inputs.most
    if scale > 1:  # scaled down and judged again; if L2 has two bounds, the upper one
        inputs = most._replace(launch=scaled_launch(most.launch, scale))
        sizing = judge_inputs(inputs, written.shown.host, host.root)
        both = written.inputs._replace(least=inputs, most=inputs)
        small = written._replace(inputs=both, least=sizing, most=sizing)
        needs = launch_needs(small)
    if needs.rdma_processes:
        facts = read_facts(host.root, needs, READ_SECONDS, topics=_TOPICS)
        rdma = facts.topic("rdma")
        if isinstance(rdma, Unknown):
            return Unknown(f"the RDMA devices cannot be read: {rdma.reason}")
    plan = make_plan(written, small, needs, facts, library, scale)
    return Preparation(plan, needs, facts)


def answer_of(
    prepared: Preparation, done: RehearsalRun, warnings: Iterable[str] = ()
) -> RehearsalAnswer:
    """Judge a rehearsal that has run; if a step failed, the findings of the checks are added."""
    checked = _check_failures(prepared) if failed_step(done) else ()
    return judge(prepared.plan, done, warnings, checked)


def _check_failures(prepared: Preparation) -> tuple[str, ...]:
    """Return the failures that the checks on memlock and RDMA find in facts read before the run; ()
    without RDMA.

    If the plan predicts a refusal, the failure of FORK_SAFE is left out.
    """
    if prepared.facts is None or prepared.needs is None:
        return ()
    from checks.framework.finding import Status
    from checks.rdma.fork import FORK_SAFE
    from checks.run_checks.runner import every_check
    from checks.run_checks.runner import judge as judge_checks

    of = [check for check in every_check() if check.id.startswith(("memlock.", "rdma."))]
    chosen = [check for check in of if {*check.about} <= {"needs", *_TOPICS}]
    findings = judge_checks(prepared.facts, prepared.needs, chosen)
    # That check's arithmetic says at which step, and the plan has it.
    foretold = {FORK_SAFE} if any(step.refused for step in prepared.plan.steps) else set()
    failed = (x for x in findings if x.status is Status.FAIL and x.check not in foretold)
    return tuple(f"{x.check}: have {x.have}, need {x.need}: {x.text}" for x in failed)


EXIT_CODES = {"starts": 0, "warns": 1, "fails": 2, "differs": 2, "stopped": 3, "unknown": 3}


class RehearsalAnswer(NamedTuple):
    """The verdict of a rehearsal.

    Attributes:
        status: A key of EXIT_CODES.
        as_predicted: None if nothing can be compared.
        differences: Between run and prediction, a sentence each.
        warnings: Whatever else is to be said, the least sure last.
    """

    status: str
    reason: str
    as_predicted: bool | None = None
    plan: RehearsalPlan | None = None
    run: RehearsalRun | None = None
    differences: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        if self.status == "differs" and self.run is not None and not failed_step(self.run):
            return 1  # it starts, and is not as it should be
        return EXIT_CODES[self.status]


def judge(
    plan: RehearsalPlan,
    run: RehearsalRun,
    warnings: Iterable[str] = (),
    check_failures: Iterable[str] = (),
) -> RehearsalAnswer:
    """Compare a run with its plan, and return the answer.

    Args:
        warnings: Known before the run.
        check_failures: Sentences of the checks on why memory cannot be registered.
    """
    warned = [*warnings, *_warnings(plan, run)]
    failed = failed_step(run)
    findings = tuple(check_failures) if failed and failed.step.action != "pool" else ()
    if failed is not None and failed.step.action == "register" and plan.refused:
        findings += (plan.refused,)
    differences = tuple(_differences(plan, run, failed, bool(findings)))
    base = RehearsalAnswer("", "", None, plan, run, differences, tuple(warned))
    if run.stopped:
        return base._replace(status="stopped", reason=run.stopped)
    if plan.replayed is None:
        unread = "nothing is predicted here, because a pool of huge pages cannot be read"
        if failed is not None:
            return base._replace(status="fails", reason=f"{describe_failure(failed)} ({unread})")
        return base._replace(status="warns", reason=f"every allocation was made; {unread}")
    if differences:
        return base._replace(status="differs", reason=differences[0], as_predicted=False)
    base = base._replace(as_predicted=True)
    if failed is not None:
        foretold = _predicted_failure(plan)
        reasons = [failed.step.refused] if failed.step == foretold else []
        reasons += findings[:1] if foretold is None or foretold.refused else []
        why = "; ".join(filter(None, reasons))
        reason = f"{describe_failure(failed)}, as predicted" + (f": {why}" if why else "")
        return base._replace(status="fails", reason=reason)
    if plan.refused:
        reason = f"its memory is there, and the launch does not start: {plan.refused}"
        return base._replace(status="fails", reason=reason)
    if warned:
        return base._replace(status="warns", reason=warned[0])
    reason = "every allocation was made and registered as predicted"
    return base._replace(status="starts", reason=reason)


def failed_step(run: RehearsalRun) -> StepResult | None:
    last = run.done[-1:]
    return last[0] if last and last[0].error else None


def describe_failure(done: StepResult) -> str:
    """Say which step failed, and with which error."""
    name = done.step.member.name
    lines = f" ({done.lines[-1]})" if done.lines and is_error(done.lines[-1]) else ""
    return f"{name}, {done.step.what}: {done.error}{lines}"


def _warnings(plan: RehearsalPlan, run: RehearsalRun) -> Iterator[str]:
    """Yield warnings: pages left or taken by others, fallbacks, a start by luck, a failed put."""
    if run.left:
        listed = ", ".join(f"{n} of {format_page_size(size)}" for size, n in run.left.items())
        yield f"pages are not back after the rehearsal: {listed} (others took them, or keep them)"
    for done in run.done:
        if list(_pages_differ(done)) and _own_pages_agree(done):
            where = f"{done.step.member.name}, {done.step.what}"
            yield f"{where}: others took or gave back huge pages; its own are as predicted"
    for step in plan.steps:
        for mapped in step.taken or ():
            if mapped.outcome is Outcome.FELL_BACK:
                yield f"{step.member.name}, {mapped.what}: {mapped.error}"
    if not failed_step(run) and plan.may_fail and not _predicted_failure(plan):
        yield f"it started this time, in this order of its processes: {plan.may_fail}"
    if run.transfer.error:
        yield f"{run.transfer.put} to {run.transfer.got}: {run.transfer.error}"


def _predicted_failure(plan: RehearsalPlan) -> RehearsalStep | None:
    return next((step for step in plan.steps if step.failure), None)


def _differences(
    plan: RehearsalPlan, run: RehearsalRun, failed: StepResult | None, by_checks: bool
) -> Iterator[str]:
    """Yield a sentence for each difference of run and prediction; nothing if nothing was predicted.

    Args:
        failed: The step that failed, None if none did.
        by_checks: The checks explain that failure.
    """
    if plan.replayed is None:
        return
    foretold = _predicted_failure(plan)
    # What the checks find may come before what was foretold.
    expected = by_checks or (foretold is None and bool(plan.may_fail))
    if failed is not None and not expected:
        if foretold is None:
            yield f"{describe_failure(failed)}: it was predicted to succeed"
        elif failed.step != foretold:
            predicted = f"{_step_name(foretold)}: {_predicted_error(foretold)}"
            yield f"{describe_failure(failed)}: predicted was {predicted}"
        elif foretold.failure and not same_error(foretold.failure, failed):
            yield f"{describe_failure(failed)}: predicted was {_predicted_error(foretold)}"
    if failed is None and foretold is not None and not run.stopped:
        yield f"it starts: predicted was {_step_name(foretold)}: {_predicted_error(foretold)}"
    for done in run.done:
        # What a step gives back when it fails in a way of which no replay tells, none tells.
        told_of = done is not failed or not expected
        if done.ended is None and told_of and not _own_pages_agree(done):
            yield from _pages_differ(done)
    if failed is None and not run.stopped:
        yield from _pins_differ(plan, run)


def _step_name(step: RehearsalStep) -> str:
    what = step.failure.what if step.failure else step.what
    return f"{step.member.name}, {what}"


def _predicted_error(step: RehearsalStep) -> str:
    return step.failure.error if step.failure else ""


def same_error(foretold: Allocation, failed: StepResult) -> bool:
    """Tell whether a step failed as predicted: by a bus error, or with the same message (which is
    not compared for a program).
    """
    dies = foretold.on_shortage is OnShortage.BUS_ERROR
    if failed.ended == -signal.SIGBUS:
        return dies or foretold.may_die
    if failed.step.action == "program":
        return not dies
    return foretold.error.startswith(failed.error) or failed.error.startswith(foretold.error)


def predicted_pages(allocations: Iterable[Allocation]) -> dict[Spot, int]:
    """Return page counts by size: all pages for node None, and the bound pages for each node."""
    pages: Counter[Spot] = Counter()
    for spot, count in pages_by_spot(allocations).items():
        if count:
            pages.update(dict.fromkeys({spot, Spot(spot.page_size_bytes, None)}, count))
    return pages


def _own_pages_agree(done: StepResult) -> bool:
    """Tell whether the processes' own huge pages grew by as many bytes as predicted."""
    pages = predicted_pages(done.step.taken or ()).items()
    return done.huge_bytes == sum(at.page_size_bytes * n for at, n in pages if at.node is None)


def _pages_differ(done: StepResult) -> Iterator[str]:
    """Yield a sentence for each count of huge pages that differs (on a node: is too low).

    Yields nothing without a prediction.
    """
    if done.step.taken is None:
        return
    expected = predicted_pages(done.step.taken)
    where = f"{done.step.member.name}, {done.step.what}"
    for spot in sorted({*expected, *done.pages}, key=lambda at: (at.page_size_bytes, at.node or 0)):
        have, need = done.pages.get(spot, 0), expected.get(spot, 0)
        # Pages that are bound to no node may lie on any.
        if have < need or (spot.node is None and have != need):
            at = "" if spot.node is None else f" on node {spot.node}"
            size = format_page_size(spot.page_size_bytes)
            yield f"{where}: {have} pages of {size} were taken{at}, {need} were predicted"


def _pins_differ(plan: RehearsalPlan, run: RehearsalRun) -> Iterator[str]:
    """Yield a sentence for each process whose pinned bytes are below the prediction, or above it by
    more than ``more_bytes``.

    With a dummy client, only the sum over all processes is compared.
    """
    rows = [
        (each.member.name, each.member.pinned_bytes, each.member.more_bytes, each.pinned_bytes)
        for each in run.processes
    ]
    if any(client.dummy for member in plan.members for client in member.process.clients):
        needs = [need for _, need, *_ in rows if not isinstance(need, Unknown)]
        more = sum(more for _, _, more, _ in rows)
        together = ("all processes", sum(needs), more, sum(have or 0 for *_, have in rows))
        rows = [together] if len(needs) == len(rows) else []
    for name, need, more, have in rows:
        if not (isinstance(need, Unknown) or have is None or need <= have <= need + more):
            yield f"{name}: {have} bytes are pinned, {need} were predicted"


SCHEMA = "mooncake-preflight/rehearse/v1"
_COLOURS = ("green", "yellow", "red", "magenta")  # by exit code of the status


def answer_text(answer: RehearsalAnswer, color: str) -> str:
    """Write the answer for a terminal, without a final newline.

    Args:
        color: Auto, always or never.
    """
    paint = painter(color)
    head = paint(answer.status.upper(), _COLOURS[EXIT_CODES[answer.status]])
    parts = [f"{head}: {answer.reason}"]
    plan, run = answer.plan, answer.run
    if plan is not None and run is not None:
        rows = []
        for done in (each for each in run.done if each.step.action != "register"):
            came = _measured_text(done) if done.ended is None else done.error
            step = (done.step.member.name, done.step.what, _predicted_text(done.step))
            rows.append((*step, came, _time_text(done)))
        heads = ("process", "step", "predicted", "measured", "time")
        parts.append(fitted_table(rows, heads, columns()))
        parts.append("\n".join(_facts(plan, run)))
    more = [text for text in (*answer.differences, *answer.warnings) if text != answer.reason]
    notes = () if plan is None else plan.notes
    if more or notes:
        parts.append("\n".join(f"- {text}" for text in dict.fromkeys((*more, *notes))))
    return "\n\n".join(part for part in parts if part)


def _predicted_text(step: RehearsalStep) -> str:
    """Describe the memory that a step is predicted to take: ``48 x 2 MiB, then a failure``."""
    if step.taken is None:
        return "not reached"
    text = pages_text(predicted_pages(step.taken))
    regular = _regular_bytes(step)
    texts = [] if text == "0" and regular else [text]
    texts += [f"{format_bytes(regular)} of regular memory"] if regular else []
    texts += ["then a failure"] if step.failure else []
    return ", ".join(texts)


def _measured_text(done: StepResult) -> str:
    text = pages_text(done.pages)
    if done.resident_bytes is None or not _regular_bytes(done.step):
        return text
    resident = f"{format_bytes(done.resident_bytes)} resident"
    return resident if text == "0" else f"{text}, {resident}"


def _regular_bytes(step: RehearsalStep) -> int:
    mapped = step.taken or ()
    regular = (each for each in mapped if each.backing is Backing.REGULAR)
    return sum(each.pages * each.page_size_bytes for each in regular)


def pages_text(pages: Mapping[Spot, int]) -> str:
    """Describe page counts: ``48 x 2 MiB (node 0: 20, node 1: 28)``, or ``0`` without pages."""
    texts = []
    for spot, count in sorted(pages.items(), key=lambda item: item[0].page_size_bytes):
        if spot.node is not None or not count:
            continue
        size = spot.page_size_bytes
        nodes = ", ".join(
            f"node {at.node}: {share}"
            for at, share in sorted(pages.items(), key=lambda item: item[0].node or 0)
            if at.page_size_bytes == size and at.node is not None and share
        )
        texts.append(f"{count} x {format_page_size(size)}" + (f" ({nodes})" if nodes else ""))
    return ", ".join(texts) or "0"


def _time_text(done: StepResult) -> str:
    """Describe how long the step took; the populate rate, if 256 MiB of huge pages or more were
    taken; and the registration time, if known.
    """
    texts = [f"{done.seconds:.2f} s"]
    size = sum(s.page_size_bytes * n for s, n in done.pages.items() if s.node is None and n > 0)
    if done.populated_seconds and size >= GIB // 4:
        texts.append(f"{size / GIB / done.populated_seconds:.1f} GiB/s")
    if done.registered_seconds is not None:
        texts.append(f"registered in {done.registered_seconds:.2f} s")
    return ", ".join(texts)


def _facts(plan: RehearsalPlan, run: RehearsalRun) -> Iterator[str]:
    """Yield the lines below the table: library, pinned memory, put and get, pages left."""
    library = plan.library
    yield f"library    {library.name}" + (f", scale 1/{plan.scale}" if plan.scale > 1 else "")
    status, why = plan.full_size
    if plan.scale > 1:
        yield f"full size  the launch itself: {status}" + (f": {why}" if why else "")
    yield f"pinned     {_pinned_text(run)}"
    registered = [done for done in run.done if done.step.action == "register"]
    if registered:
        size = format_bytes(sum(done.step.order["bytes"] for done in registered))
        seconds = sum(done.seconds for done in registered)
        yield f"registered {len(registered)} regions of host pools, {size}, in {seconds:.2f} s"
    moved = run.transfer
    size = format_bytes(moved.bytes)
    text = f"{size} from {moved.put} to {moved.got}, the same, {moved.seconds:.2f} s"
    if moved.skipped or moved.error:
        text = f"not tried: {moved.skipped}" if moved.skipped else f"failed: {moved.error}"
    yield f"put, get   {text}"
    left = sum(run.left.values())
    yield f"released   {left} pages are left"


def _pinned_text(run: RehearsalRun) -> str:
    have = _sum_text(each.pinned_bytes for each in run.processes)
    locked = _sum_text(each.locked_bytes for each in run.processes)
    need = _sum_text(each.member.pinned_bytes for each in run.processes)
    return f"{have} (VmPin), {locked} locked (VmLck); predicted {need} pinned"


def _sum_text(sizes: Iterable[int | Unknown | None]) -> str:
    every = list(sizes)
    known = [size for size in every if isinstance(size, int)]
    text = format_bytes(sum(known))
    return text if len(known) == len(every) else f"{text} and more that is not known"


def answer_object(answer: RehearsalAnswer) -> dict[str, Any]:
    """Return the answer as JSON data of ``schemas/rehearse-v1.schema.json``; None if not known."""
    return {
        **fields(answer, "as_predicted", "differences", "warnings"),
        **dict.fromkeys(("library", "scale", "full_size", "notes")),
        **dict.fromkeys(("steps", "processes", "pages", "transfer", "left_pages")),
        "lowest_room_bytes": None,
        **({} if answer.plan is None else _plan_object(answer.plan)),
        **({} if answer.plan is None or answer.run is None else _run_object(answer.run)),
    }


def _plan_object(plan: RehearsalPlan) -> dict[str, Any]:
    """Build the fields of the JSON answer that come from the plan."""
    library, keys = plan.library, ("wheel", "version", "interpreter", "folder")
    parts = library.distribution, library.version, library.python, plain(library.folder)
    return {
        "library": dict(zip(keys, parts, strict=True)),
        **fields(plan, "scale", "notes"),
        "full_size": dict(zip(("status", "reason"), plan.full_size, strict=True)),
    }


def _run_object(run: RehearsalRun) -> dict[str, Any]:
    """Build the fields of the JSON answer that were measured in the run."""
    moved = run.transfer
    return {
        "steps": [_step_object(done) for done in run.done],
        "processes": [
            {
                **fields(each.member, "name", "program"),
                "numa_node": each.member.process.node,
                "devices": _or_null(each.member.nics),
                **fields(each, "pinned_bytes", "locked_bytes", "resident_bytes"),
                "predicted_pinned_bytes": _or_null(each.member.pinned_bytes),
            }
            for each in run.processes
        ],
        "pages": _page_objects(run.pages),
        "transfer": {
            **{name: getattr(moved, name) or None for name in ("put", "got", "error", "skipped")},
            "size_bytes": moved.bytes,
            "seconds": moved.seconds,
        },
        "left_pages": [
            {"page_size_bytes": size, "pages": n} for size, n in sorted(run.left.items())
        ],
        "lowest_room_bytes": run.lowest_room_bytes,
    }


def _or_null(value: Any) -> Any:
    return None if isinstance(value, Unknown) else plain(value)


def _step_object(done: StepResult) -> dict[str, Any]:
    """Build the JSON of one step: what it asks for, the prediction and the measurement."""
    step, failure = done.step, done.step.failure
    times = ("seconds", "populated_seconds", "registered_seconds")
    return {
        "process": step.member.name,
        "kind": step.action,
        "what": step.what,
        "asked": [_allocation_object(each) for each in step.asked],
        "predicted": {
            "pages": None if step.taken is None else _page_objects(predicted_pages(step.taken)),
            "fails_at": None if failure is None else plain(failure.what),
            "error": None if failure is None else failure.error,
        },
        "measured": {
            "pages": _page_objects(done.pages) if done.ended is None else None,
            "error": done.error or None,
            "lines": plain(done.lines),
            **fields(done, *times, "resident_bytes", "pinned_bytes"),
        },
    }


def _allocation_object(mapped: Allocation) -> dict[str, Any]:
    """Build the JSON of one allocation that a step asks for."""
    return {
        **fields(mapped, "what", "backing", "page_size_bytes", "pages", "registered"),
        "size_bytes": plain(mapped.bytes),
        "numa_node": mapped.node,
    }


def _page_objects(pages: Mapping[Spot, int]) -> list[dict[str, Any]]:
    """Build the JSON of page counts by size and NUMA node, without counts of 0."""
    ordered = sorted(pages.items(), key=lambda item: (item[0].page_size_bytes, item[0].node or -1))
    keys = "page_size_bytes", "numa_node", "pages"
    return [dict(zip(keys, (*spot[:2], n), strict=True)) for spot, n in ordered if n]
