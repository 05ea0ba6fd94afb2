"""``mooncake-hicache-sizing``: the huge pages that a launch takes, to the page, and what to set."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from preflight.base.command_frame import own_words, requested_answers, run_command
from preflight.base.exit_codes import DEFECT, USAGE
from preflight.base.output import output_to, painter, say, say_json
from preflight.base.program import program_version
from preflight.cli.commands import command as declared
from preflight.cli.options import COLOR, JSON, SIZE, TIMEOUT, Size, with_host, with_launch

if TYPE_CHECKING:
    from checks.framework.root import Root
    from preflight.command_inputs.launch_words import LaunchWords
    from preflight.needs.launch_sizing import LaunchSizing

# What describes a launch: as a field of Flags, and as it is typed.
_NEEDED = {
    "tp_size": "--tp-size",
    "hicache_bytes": "--hicache-size",
    "segment_bytes": "--global-segment-size",
}
# All flags of the helper (Mooncake's scripts/check_hicache_hugepage_requirements.py).
_HELPER_FLAGS = (*_NEEDED.values(), "--arena-pool-size", "--hugepage-size", "--available-hugetlb")
_SAID_BY_LAUNCH = {
    "arena_bytes": "--arena-pool-size",
    "hugepage_bytes": "--hugepage-size",
    "local_buffer_bytes": "--local-buffer-size",
    "protocol": "--protocol",
    "use_hugepage": "--use-hugepage",
}


@declared(
    "mooncake-hicache-sizing",
    "mooncake-hicache-sizing launch.sh",
    "mooncake-hicache-sizing -- python3 -m sglang.launch_server --model-path Qwen/Qwen3-14B --tp 2",
    "mooncake-hicache-sizing --tp-size 4 --hicache-size 64gb \\",
    "    --global-segment-size 8gb",
)
@click.option("--tp-size", type=int, help="Tensor-parallel ranks.")
@click.option(
    "--hicache-size", "hicache_bytes", type=SIZE, help="L2 host pool of one rank, as 64gb."
)
@click.option(
    "--global-segment-size", "segment_bytes", type=SIZE,
    help="Memory that the instance gives to the store, as 8gb (see --segment-scope).",
)  # fmt: skip
@click.option(
    "--arena-pool-size", "arena_bytes", type=SIZE,
    help="MC_MMAP_ARENA_POOL_SIZE, per rank. Default: as the environment has it, or none.",
)  # fmt: skip
@click.option(
    "--hugepage-size", "hugepage_bytes", type=SIZE,
    help="Of the pages: 2mb (Mooncake's default), 1gb, or 512mb.",
)  # fmt: skip
@click.option(
    "--available-hugetlb", "available_bytes", type=Size(empty=True),
    help="Size the launch against this pool instead of what the kernel has.",
)  # fmt: skip
@click.option(
    "--rule", type=click.Choice(["exact", "documented"]), default="exact", show_default=True,
    is_eager=True,  # how sizes are read depends on it
    help="The rule that gives status and exit code; both are shown.",
)  # fmt: skip
@click.option("--pp-size", type=int, default=1, show_default=True, help="Pipeline ranks.")
@click.option("--dp-size", type=int, default=1, show_default=True, help="Replicas.")
@click.option(
    "--local-buffer-size", "local_buffer_bytes", type=SIZE,
    help="Of each process. Default: 16mb, as in SGLang.",
)  # fmt: skip
@click.option(
    "--segment-scope", type=click.Choice(["instance", "process"]), default="instance",
    show_default=True,
    help="Whose --global-segment-size is. instance: divided by tp x pp, as SGLang does. "
    "process: of each process (store service, mooncake_client, vLLM).",
)  # fmt: skip
@click.option(
    "--protocol", type=click.Choice(["rdma", "tcp"]),
    help="Default: MOONCAKE_PROTOCOL, or rdma as in SGLang.",
)  # fmt: skip
@click.option(
    "--use-hugepage/--no-use-hugepage", default=None,
    help="MC_STORE_USE_HUGEPAGE present or not. Default: as the environment has it, or on.",
)  # fmt: skip
@click.option("--explain", is_flag=True, help="A launch's needs, each with its formula and inputs.")
@JSON
@COLOR
@TIMEOUT
@with_host
@click.version_option(program_version(), "--version")
@with_launch
def command(
    *,
    rule: str,
    explain: bool,
    as_json: bool,
    color: str,
    timeout_seconds: float,
    root: str,
    launch: LaunchWords,
    **sizes: Any,
) -> int:
    """Size the HugeTLB pages that an SGLang HiCache launch with Mooncake takes from this host.

    LAUNCH is what starts your servers: a shell script, a compose file, a Kubernetes manifest, or -
    (standard input); or, after --, a command line. Nothing of it is executed. Without it,
    --tp-size, --hicache-size and --global-segment-size describe the launch. Sizes are powers of
    1024 with a unit: b, kb, mb, gb, tb.

    Exit codes: 0 fits; 1 starts, but something asked for is not used; 2 will not start; 3 cannot be
    known; 64 usage error; 70 a defect of this program. With --rule documented: the helper's.
    """
    from preflight.base.within import within

    host = within(timeout_seconds, f"--root {root}", lambda: _host(root))
    launch = launch._replace(gpu_bytes=launch.gpu_bytes or getattr(host, "gpu_bytes", None))
    if launch.words:
        from preflight.command_inputs.written_launch import size_launch_words
        from preflight.host_tuning.refusal import with_withheld
        from preflight.launch_problems.rules.launch_rules import with_problems

        for name, flag in (_NEEDED | _SAID_BY_LAUNCH).items():
            if sizes[name] is not None:
                why = f"{flag} beside a launch, which says it itself: drop one of them"
                raise click.UsageError(why)

        def size() -> LaunchSizing:
            sized = size_launch_words(launch, sizes["available_bytes"], os.environ, host)
            return with_withheld(with_problems(sized), host)

        name = launch.words[0] if len(launch.words) == 1 else "the launch, or a file that it names"
        return _say_launch(within(timeout_seconds, name, size), rule, explain, as_json, color)
    if explain:
        raise click.UsageError("--explain is for a launch: give a script, or a command after --")
    if missing := [flag for name, flag in _NEEDED.items() if sizes[name] is None]:
        raise click.UsageError(f"Missing option '{missing[0]}' (or a launch to read).")
    from preflight.needs.flag_inputs import Flags
    from preflight.needs.sizing import size_flags

    flags = Flags(
        **sizes,
        nic_nodes=launch.nic_nodes,
        rank_nodes=launch.rank_nodes,
        mooncake_version=launch.mooncake_version,
        sglang_version=launch.sglang_version,
        documented=rule == "documented",
    )
    source = click.get_current_context().get_parameter_source("available_bytes")
    empty = flags.available_bytes is None and source is ParameterSource.COMMANDLINE
    if empty and not flags.documented:
        raise click.UsageError(
            "--available-hugetlb '': give the pool's size, such as 64gb, or leave the option out "
            "for this host's; only --rule documented reads this host then"
        )
    sizing = within(timeout_seconds, f"--root {root}", lambda: size_flags(flags, os.environ, host))
    if as_json:
        from preflight.needs.sizing_json import sizing_object

        say_json(sizing_object(sizing, rule))
    else:
        from preflight.needs.sizing_text import sizing_text

        say(sizing_text(sizing, rule, painter(color)))
    return sizing.exit_code if rule == "exact" else sizing.documented.exit_code


def _host(root: str) -> Root:
    """Return the host at ``root``: a machine, a tree or a capture.

    Raises click.UsageError.
    """
    from checks.framework.root import Root

    if root == "/":
        return Root()
    from checks.host_snapshot.capture import CaptureError, open_root

    try:
        return open_root(root)
    except CaptureError as error:
        raise click.UsageError(str(error)) from None


def _say_launch(sizing: LaunchSizing, rule: str, explain: bool, as_json: bool, color: str) -> int:
    """Print a launch's sizes; return the exit code by ``rule``.

    Args:
        explain: Add each formula.
    """
    from checks.host_snapshot.secrets import public

    if as_json:
        from preflight.needs.sizing_json import launch_object

        say_json(public(launch_object(sizing, rule)))
    else:
        from preflight.needs.sizing_text import launch_text

        say(public(launch_text(sizing, rule, painter(color), explain)))
    return sizing.exit_code_by(rule)


def main() -> None:
    """Run the console script: every way out has its exit code, and no traceback."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run with ``arguments``; returns the exit code."""
    typed = [_whole(word) for word in own_words(arguments)]
    typed += arguments[len(typed) :]
    return run_command(command, "mooncake-hicache-sizing", typed, partial(refuse, typed))


def _whole(word: str) -> str:
    """Return an option in full, if it is a beginning of one of the helper's flags alone: its
    parser, argparse, takes those too.
    """
    flag, equals, value = word.partition("=")
    flags = [each for each in _HELPER_FLAGS if each.startswith(flag)]
    return f"{flags[0]}{equals}{value}" if len(flag) > 2 and len(flags) == 1 else word


def refuse(arguments: Sequence[str], exit_code: int, message: str) -> int:
    """Write an error object, if JSON was asked for, to where the answer was to go; return
    ``exit_code``.

    A file is written only for usage errors and defects.
    """
    for name, path in requested_answers(own_words(arguments)):
        if name == "json" and (path is None or exit_code in (USAGE, DEFECT)):
            from preflight.needs.sizing_json import error_object

            with output_to(path):
                say_json(error_object(exit_code, message))
    return exit_code


if __name__ == "__main__":
    main()
