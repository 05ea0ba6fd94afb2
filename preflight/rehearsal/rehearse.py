"""A launch's allocations, made for real, held against what was predicted, and taken back."""

from collections.abc import Iterable
from typing import NamedTuple

from checks.base.needs import LaunchNeeds
from checks.base.root import Root
from checks.base.unknown import Unknown
from checks.releases.mooncake import mooncake_release
from checks.run.facts import Facts, read_facts
from preflight.base.output import Progress
from preflight.base.usage_error import UsageError
from preflight.base.within import limit_seconds
from preflight.inputs.host_source import Host, Sized, open_host, size_within
from preflight.inputs.launch_words import LaunchWords
from preflight.rehearsal.answer import RehearsalAnswer, failed_step, judge
from preflight.rehearsal.members import scaled_launch
from preflight.rehearsal.plan import make_plan
from preflight.rehearsal.programs import RehearsalError
from preflight.rehearsal.records import Library, RehearsalPlan, RehearsalRun, find_library
from preflight.rehearsal.run import others, run
from preflight.sizing.launch_needs import launch_needs
from preflight.sizing.launch_sizing import LaunchSizing
from preflight.sizing.sizing import judge_inputs

# To read the launch and the host; a step has a limit of its own.
READ_SECONDS = 30.0
# What the checks of registration ask of a host.
_TOPICS = ("system", "limits", "rdma")


def rehearse(
    launch: LaunchWords, python: str | None, scale: int, step_seconds: float
) -> RehearsalAnswer:
    """Rehearse a launch. scale: divides every size. step_seconds: the limit of each step.

    python: the interpreter that has Mooncake; None: the running one. Raises UsageError.
    """
    if not launch.words:
        raise UsageError("give the launch: a script, or a command after --")
    library = find_library(python)
    if isinstance(library, Unknown):
        return RehearsalAnswer("unknown", library.reason)
    try:
        mooncake_release(library.version)
    except ValueError as error:
        return RehearsalAnswer("unknown", f"{library.name}: {error}")
    host = open_host("/")
    words = launch._replace(mooncake_version=library.version)
    sized = size_within(words, host, limit_seconds(READ_SECONDS))
    if isinstance(sized, Unknown):
        return RehearsalAnswer("unknown", sized.reason)
    assert sized is not None
    prepared = prepare(sized, host, library, scale)
    if isinstance(prepared, Unknown):
        return RehearsalAnswer("unknown", prepared.reason)
    return perform(prepared, step_seconds)


class Prepared(NamedTuple):
    """plan: what is to be done. needs, facts: of the launch that is run, for what checks say."""

    plan: RehearsalPlan
    needs: LaunchNeeds | None = None
    facts: Facts | None = None


def prepare(sized: Sized, host: Host, library: Library, scale: int) -> Prepared | Unknown:
    """Plan the rehearsal and its prediction; Unknown if the launch cannot be rehearsed."""
    written = sized.sizing
    if isinstance(written.inputs.most, Unknown):
        return Unknown(f"the launch's sizes are not known: {written.inputs.most.reason}")
    if written.shown is None or not written.shown.inputs.launch.processes:
        return Unknown("the launch maps no memory on this host: there is nothing to rehearse")
    own = [one.name for one in written.shown.inputs.launch.processes if one.own_pools]
    if own:
        return Unknown(f"{own[0]} has a pool that it maps itself, which is not rehearsed")
    small = _scaled(written, host, scale)
    needs = sized.needs if small is written else launch_needs(small)
    facts = None
    if needs.rdma_processes:
        facts = read_facts(host.root, needs, READ_SECONDS, topics=_TOPICS)
        rdma = facts.topic("rdma")
        if isinstance(rdma, Unknown):
            return Unknown(f"the RDMA devices cannot be read: {rdma.reason}")
    plan = make_plan(written, small, needs, facts, library, scale)
    return Prepared(plan, needs, facts)


def _scaled(written: LaunchSizing, host: Host, scale: int) -> LaunchSizing:
    """Return the launch scaled down and judged again; if L2 has two bounds, the upper one."""
    most = written.inputs.most
    if isinstance(most, Unknown) or scale == 1:
        return written
    inputs = most._replace(launch=scaled_launch(most.launch, scale))
    assert written.shown is not None
    sizing = judge_inputs(inputs, written.shown.host, host.root)
    both = written.inputs._replace(least=inputs, most=inputs)
    return written._replace(inputs=both, least=sizing, most=sizing)


def perform(prepared: Prepared, timeout_seconds: float) -> RehearsalAnswer:
    """Run the rehearsal and compare it with its prediction; ``unknown`` if it cannot run."""
    root, plan = Root(), prepared.plan
    warnings = others(root)
    progress = Progress()
    try:
        done = run(plan, root, timeout_seconds, progress.show)
    except (RehearsalError, OSError) as error:
        return RehearsalAnswer("unknown", str(error), plan=plan)
    finally:
        progress.clear()
    return answer_of(prepared, done, warnings)


def answer_of(
    prepared: Prepared, done: RehearsalRun, warnings: Iterable[str] = ()
) -> RehearsalAnswer:
    """Judge a rehearsal that has run; if it failed, the checks' findings are a part of it."""
    checked = _checked(prepared) if failed_step(done) else ()
    return judge(prepared.plan, done, warnings, checked)


def _checked(prepared: Prepared) -> tuple[str, ...]:
    """Return the checks' failures on memlock and RDMA, read before the rehearsal began."""
    if prepared.facts is None or prepared.needs is None:
        return ()
    from checks.base.finding import Status
    from checks.rdma.fork import FORK_SAFE
    from checks.run.runner import every_check
    from checks.run.runner import judge as judge_checks

    of = [pair for pair in every_check() if pair[0].id.startswith(("memlock.", "rdma."))]
    chosen = [pair for pair in of if {*pair[0].topics} <= {*_TOPICS}]
    found = judge_checks(prepared.facts, prepared.needs, chosen)
    # That check's arithmetic says at which step, and the plan has it.
    told = {FORK_SAFE} if any(step.refused for step in prepared.plan.steps) else set()
    return tuple(
        f"{one.check}: have {one.have}, need {one.need}: {one.text}"
        for one in found
        if one.status is Status.FAIL and one.check not in told
    )
