"""``mooncake-preflight check``: one launch held against one host."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from preflight.base.output import columns, drawing_encoding, output_to, painter, say, say_json
from preflight.cli.checks_options import with_checks
from preflight.cli.commands import PROTOCOLS, command, with_formats
from preflight.cli.options import (
    COLOR,
    FILE,
    MEASURED,
    TIMEOUT,
    with_host,
    with_launch,
    with_verbosity,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from checks.framework.finding import Finding
    from preflight.base.command_frame import Answers
    from preflight.command_inputs.launch_words import Chosen, LaunchWords
    from preflight.report.pictures.check_page import MadeBy
    from preflight.verdict.answer import Checked
    from preflight.verdict.judge_host import JudgedHost


@command(
    "check",
    "mooncake-preflight check launch.sh",
    "mooncake-preflight check -- python3 -m sglang.launch_server --model-path Qwen/Qwen3-14B",
    "mooncake-preflight check --root host.tar.gz --skip 'pci.*' launch.sh",
)
@with_formats("text", "json", "junit", "html", *PROTOCOLS)
@with_checks
@TIMEOUT
@with_host
@click.option(
    "--fail-on",
    type=click.Choice(["fail", "unknown", "warn"]),
    help="The mildest verdict that npd and slurm-prolog (default: fail) or k8s (unknown) refuse.",
)
@click.option(
    "--lock", type=FILE, metavar="FILE", help="Write what was found good, for exec --locked."
)
@MEASURED
@click.option("--memory-map", is_flag=True, help="Draw where each NUMA node's memory goes, too.")
@click.option("--ascii", "plain", is_flag=True, help="Draw it with ASCII characters alone.")
@COLOR
@with_verbosity("What passed and what was skipped, too.")
@with_launch
def check(
    *,
    chosen: Chosen,
    timeout_seconds: float,
    root: str,
    answers: Answers,
    fail_on: str | None,
    lock: str | None,
    measured: str | None,
    memory_map: bool,
    plain: bool,
    color: str,
    verbosity: int,
    launch: LaunchWords,
) -> int:
    """Check a launch against this host, and say what to fix.

    LAUNCH is what starts your servers: a shell script, a compose file, a Kubernetes manifest, or -
    (standard input); or, after --, a command line. Nothing of it is executed. Without it, the host
    alone is checked.

    Exit codes: 0 pass; 1 warn: it starts, something is not as it should be; 2 fail: it will not
    start, or will not last; 3 unknown: what decides cannot be read; 64 usage error; 70 a defect of
    this program.
    """
    formats = [name for name, _ in answers]
    protocol = next((name for name in formats if name in PROTOCOLS), "native")
    _refuse_wrong_options(protocol, fail_on, formats, memory_map, plain)
    from preflight.verdict.answer import check_launch
    from preflight.verdict.report import exit_code, report_object

    if lock is not None and (lock == "-" or not launch.words or chosen.only or chosen.skip):
        why = "--lock FILE: the whole answer of a LAUNCH, without --only and --skip"
        raise click.UsageError(why)
    topics: tuple[str, ...] = ()
    if "html" in formats:
        from preflight.report.pictures.check_page import PAGE_TOPICS

        topics = PAGE_TOPICS
    elif memory_map:
        from preflight.report.pictures.memory_map import MAP_TOPICS

        topics = MAP_TOPICS
    if "json" in formats:
        from preflight.report.machine import MACHINE_TOPICS

        topics = (*topics, *MACHINE_TOPICS)

    def slow(topics: list[str]) -> None:
        say(f"mooncake-preflight: still reading {', '.join(topics)}", err=True)

    answer = check_launch(
        launch,
        root,
        timeout_seconds,
        chosen=chosen,
        more_topics=topics,
        report_slow=slow if sys.stderr.isatty() and verbosity >= 0 else None,
        judge_measured=_measured_judge(measured),
    )
    code = exit_code(answer.report.verdict, protocol, fail_on)
    if lock is not None:
        _write_lock(lock, answer, timeout_seconds)
    for name, path in answers:
        with output_to(path):
            if name == "json":
                from preflight.report.machine import machine_object

                more = {"machine": machine_object(answer.judged_host)}
                say_json(report_object(answer.report, protocol, code, more))
            else:
                say(_in_format(name, answer, color, verbosity, memory_map, plain))
    return code


def _in_format(
    name: str, answer: Checked, color: str, verbosity: int, memory_map: bool, plain: bool
) -> str:
    """Return the answer in the format ``name``.

    Args:
        memory_map: Add it to the text; plain: in ASCII.
    """
    from preflight.verdict.report import protocol_line, report_junit

    if name == "junit":
        return report_junit(answer.report).rstrip("\n")
    if name == "html":
        from preflight.cache_sizing.capacity.figure import draw_tiers
        from preflight.report.pictures.check_page import check_page

        made_by = page_stamp()
        return check_page(answer.report, answer.judged_host, made_by, draw_tiers).rstrip("\n")
    if (text := protocol_line(answer.report, name)) is not None:
        return text
    from preflight.report.to_text import report_text

    text = report_text(answer.report, painter(color), columns(), verbosity)
    if memory_map:
        from preflight.report.pictures.memory_map import bars_text, draws_blocks, memory_of

        plain = plain or not draws_blocks(drawing_encoding())
        text += f"\n\n{bars_text(memory_of(answer.judged_host), painter(color), columns(), plain)}"
    return text


def _measured_judge(path: str | None) -> Callable[[JudgedHost], list[Finding]]:
    """Return a function that gives the findings on a launch by the rates in the file ``path``,
    given as --measured; the function returns [] if ``path`` is None or no launch was read.

    The file is read at once: raises UsageError if that fails.
    """
    if path is None:
        return lambda _: []
    from checks.framework.unknown import Unknown
    from preflight.benchmark.measuring.findings import findings
    from preflight.benchmark.measuring.records import launch_wish, read_measured

    rates = read_measured(path)

    def judge(judged_host: JudgedHost) -> list[Finding]:
        if judged_host.launch is None or isinstance(judged_host.launch, Unknown):
            return []
        return findings(rates, launch_wish(judged_host.launch, judged_host.host))

    return judge


def _refuse_wrong_options(
    protocol: str, fail_on: str | None, formats: list[str], memory_map: bool, plain: bool
) -> None:
    """Refuse --fail-on, --ascii and --memory-map with a format or option that they do not go with.

    Raises click.UsageError.
    """
    from preflight.verdict.report import YES_OR_NO

    if fail_on is not None and protocol not in YES_OR_NO:
        raise click.UsageError(
            f"--fail-on is for {', '.join(YES_OR_NO)}: {protocol} has an exit code for each status"
        )
    if plain and not memory_map:
        raise click.UsageError("--ascii is for --memory-map: give both")
    if memory_map and not {"text", "k8s"} & set(formats):
        raise click.UsageError("--memory-map is drawn below the text: add --format text")


def _write_lock(path: str, checked: Checked, limit_seconds: float) -> None:
    """Write the answer to the file of ``--lock``, within ``limit_seconds``.

    A failing or unknown answer is not written: standard error says why.

    Raises:
        UsageError: If writing fails.
    """
    from checks.framework.finding import Status
    from preflight.base.within import save
    from preflight.report.diff.full_answer import full_answer, locked_text

    why = {
        Status.FAIL: "the launch fails here",
        Status.UNKNOWN: "whether it runs here is not known; accept what is unknown by --ignore",
    }.get(checked.report.verdict)
    if why is not None:
        say(f"--lock {path}: not written: {why}", err=True)
    else:
        source = "launch" if checked.judged_host.needs is None else checked.judged_host.needs.source
        answer = full_answer(checked.judged_host, checked.waivers)
        text = locked_text(source, answer, checked.waivers)
        save(f"--lock {path}", path, text.encode(), 0o644, limit_seconds)


def page_stamp() -> MadeBy:
    """Return who makes a page, and when: at SOURCE_DATE_EPOCH if that is a time, else now."""
    import os
    import time

    from preflight.base.program import program_version
    from preflight.report.pictures.check_page import MadeBy

    epoch = os.environ.get("SOURCE_DATE_EPOCH", "")
    # Ten digits last until the year 2286.
    seconds = int(epoch) if epoch.isascii() and epoch.isdecimal() and len(epoch) < 11 else None
    moment = time.gmtime(time.time() if seconds is None else seconds)
    return MadeBy(program_version(), time.strftime("%Y-%m-%d %H:%M UTC", moment))
