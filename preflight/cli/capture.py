"""``mooncake-preflight capture``: what the checks read of this host, in one file."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from preflight.cli.commands import command, say_answer
from preflight.cli.options import JSON, ROOT, TIMEOUT, with_launch

if TYPE_CHECKING:
    from preflight.command_inputs.launch_words import LaunchWords


@command(
    "capture",
    "mooncake-preflight capture host.tar.gz launch.sh",
    "ssh gpu012 mooncake-preflight capture - > gpu012.tar.gz",
)
@click.argument("file")
@click.option(
    "--running", is_flag=True, help="Keep what observe reads of the programs that run here, too."
)
@click.option("--keep-names", is_flag=True, help="Keep names of hosts and users, and addresses.")
@JSON
@TIMEOUT
@ROOT
@with_launch
def capture(
    *,
    file: str,
    running: bool,
    keep_names: bool,
    as_json: bool,
    timeout_seconds: float,
    root: str,
    launch: LaunchWords,
) -> int:
    """Save what the checks read of this host in FILE, a .tar.gz for check --root FILE.

    With a launch, FILE has what is understood of that too (known settings and variables), without
    secrets: check --root FILE then needs no other. With --running, observe --root FILE says what
    runs: the known programs' command lines, variables that count, mappings, limits and numbers of
    files.
    """
    from checks.framework.archive import archive_bytes, is_stream
    from checks.host_snapshot.capture import LARGEST_BYTES, CaptureError, capture_files
    from preflight.base.output import say
    from preflight.base.usage_error import UsageError
    from preflight.base.within import save
    from preflight.command_inputs.host_record import own_names, record
    from preflight.command_inputs.host_source import open_host

    path = "/dev/stdout" if file == "-" else file
    host = open_host(root, timeout_seconds)
    try:
        recorded = record(launch, host, timeout_seconds)
        answers, extras, named = recorded.answers, recorded.extras, list(recorded.hosts)
        if running:
            from preflight.live_servers.running_record import record_running

            seen = record_running(host.root)
            for name in ("texts", "folders", "links", "calls"):
                getattr(answers, name).update(getattr(seen.answers, name))
            extras["running"], named = seen.argv, [*named, *seen.hosts]
        if not keep_names:
            from checks.host_snapshot.anonymise import anonymise

            hosts, users = own_names(host)
            answers, extras = anonymise(answers, extras, [*hosts, *named], users)
        extras["names"] = "kept" if keep_names else "replaced"
        content = archive_bytes(capture_files(answers, extras))
    except CaptureError as error:
        raise UsageError(f"{path}: {error}") from None
    save(path, path, content, 0o600, timeout_seconds)
    if as_json:
        from preflight.needs.launch_needs import source_name

        answer = {
            "file": path,
            "files": len(answers.texts),
            "calls": len(answers.calls),
            "size_bytes": len(content),
            "names": extras["names"],
        }
        sizing = None if recorded.sized is None else recorded.sized.sizing
        started = sizing and (source_name(sizing), sizing.inputs.processes)
        say_answer("capture", 0, answer, started=started, err=is_stream(path))
    else:
        names = "as they are" if keep_names else "replaced"
        counts = f"{len(answers.texts)} files and {len(answers.calls)} other answers"
        message = f"{path}: {counts}, {len(content)} bytes, names and addresses {names}"
        say(message, err=is_stream(path))
    if len(content) > LARGEST_BYTES:
        say(f"mooncake-preflight: {path} has more than {LARGEST_BYTES} bytes", err=True)
    return 0
