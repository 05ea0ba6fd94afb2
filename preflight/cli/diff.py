"""``mooncake-preflight diff``: what another release, launch or host changes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from preflight.base.usage_error import UsageError
from preflight.cli.commands import command, say_answer
from preflight.cli.options import COLOR, JSON, TIMEOUT, with_launch, with_verbosity

if TYPE_CHECKING:
    from preflight.command_inputs.launch_words import LaunchWords, Waiver
    from preflight.report.diff.full_answer import Side


@command(
    "diff",
    "mooncake-preflight diff launch.sh --from sglang=0.5.9,mooncake=0.3.8 \\",
    "    --to sglang=0.5.23,mooncake=0.3.13.post1",
    "mooncake-preflight diff launch.sh --to kernel=7.0.0-31-generic,rdma-core=51",
    "mooncake-preflight diff launch.sh --against launch-new.sh",
    "mooncake-preflight diff launch.sh --root old.tar.gz --root new.tar.gz",
    "mooncake-preflight diff launch.sh --lock good.json",
    "mooncake-preflight diff launch.sh --locked good.json",
)
@click.option("--from", "old", default="", metavar="NAME=VERSION,..", help="What runs now.")
@click.option("--to", "new", default="", metavar="NAME=VERSION,..", help="What is to run.")
@click.option("--against", metavar="FILE", help="The other launch, in place of LAUNCH.")
@click.option(
    "--root", "roots", multiple=True, metavar="HOST",
    help="The host, as check takes it; given twice, the old one and the new one.",
)  # fmt: skip
@click.option("--lock", metavar="FILE", help="Write the answer, to compare with it later.")
@click.option("--locked", metavar="FILE", help="Compare the answer with that file.")
@JSON
@TIMEOUT
@COLOR
@with_verbosity("Flags that come and go with a release too.")
@with_launch
def diff(
    *,
    old: str,
    new: str,
    against: str | None,
    roots: tuple[str, ...],
    lock: str | None,
    locked: str | None,
    as_json: bool,
    timeout_seconds: float,
    color: str,
    verbosity: int,
    launch: LaunchWords,
) -> int:
    """Say what changes for LAUNCH: bytes and pages, flags, known problems, findings, settings.

    NAME is sglang, mooncake, kernel, rdma-core or nvidia-driver; what is not named is as on the
    host. Both sides are answered in full, as check, sizing and plan answer; only what differs is
    shown.

    Exit codes: 0 nothing changes; 1 something does; 2 the verdict of check becomes a worse one.
    """
    from checks.host_snapshot.secrets import public
    from preflight.base.output import columns, painter, say
    from preflight.command_inputs.host_source import open_host
    from preflight.report.diff.full_answer import (
        Side,
        answer_of,
        differences_object,
        differences_text,
        exit_code,
        locked_text,
        parse_versions,
        read_locked,
        without_secrets,
    )

    if len(roots) > 2:
        raise UsageError("--root: one host, or two")
    if (lock or locked) and (old or against or len(roots) == 2 or (lock and locked)):
        raise UsageError("--lock and --locked are for one answer: LAUNCH, on one host")
    if not (old or new or against or len(roots) == 2 or lock or locked):
        instead = "give --to, --against, --locked, or --root twice"
        raise UsageError(f"there is nothing to compare with: {instead}")
    hosts = (roots or ("/",))[:1] + (roots or ("/",))[-1:]
    opened = {name: open_host(name, timeout_seconds) for name in dict.fromkeys(hosts)}
    # Lines of two texts are not the same: a process is found again by its program and place.
    first = launch if against is None else launch._replace(by_program=True)
    other = launch if against is None else first._replace(words=(against,))
    sides = (
        Side(first, opened[hosts[0]], parse_versions("--from", old)),
        Side(other, opened[hosts[1]], parse_versions("--to", new)),
    )
    names = (_name(sides[0], len(roots) == 2), _name(sides[1], len(roots) == 2))
    if lock is not None:
        from preflight.base.within import save

        answer, started = answer_of(sides[1], timeout_seconds)
        text = locked_text(names[1], answer)
        save(f"--lock {lock}", lock, text.encode(), 0o644, timeout_seconds)
        if as_json:  # nothing differs from what is written
            same = {**differences_object((names[1], names[1]), answer, answer), "lock": lock}
            say_answer("diff", 0, public(same), launch=started, host=hosts[1])
        return 0
    waivers: tuple[Waiver, ...] = ()  # of the lock, where there is one
    if locked is None:
        before, _ = answer_of(sides[0], timeout_seconds)
    else:
        locked_answer = read_locked(locked, timeout_seconds)
        before, waivers = locked_answer.answer, locked_answer.waivers
        names = (f"{locked_answer.name} ({locked})", names[1])
    after, started = answer_of(sides[1], timeout_seconds, waivers)
    if locked is not None:
        after = without_secrets(after)
    if as_json:
        differences = public(differences_object(names, before, after))
        code = exit_code(before, after)
        why = (None, "lines of the answer differ", "the verdict of check is a worse one")[code]
        say_answer("diff", code, differences, reason=why, launch=started, host=hosts[1])
    else:
        paint = painter(color)
        say(public(differences_text(names, before, after, verbosity, paint, columns())))
    return exit_code(before, after)


def _name(side: Side, with_host: bool) -> str:
    versions = [f"{product} {version}" for product, version in side.versions.items()]
    host = [side.host.name] if with_host else []
    return ", ".join([*side.launch.words[:1], *versions, *host]) or "what is there"
