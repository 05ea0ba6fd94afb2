"""``mooncake-hicache-sizing``: the huge pages that a launch takes, to the page, and what to set."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from preflight.base.command_frame import own_words, run_command
from preflight.base.output import colored, painter, say, say_json
from preflight.cli.launch_options import config_text, examples
from preflight.cli.sizing_options import sizing_options

if TYPE_CHECKING:
    from preflight.sizing.sizing import Sizing


@click.command(
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog=examples(
        "mooncake-hicache-sizing launch.sh",
        "mooncake-hicache-sizing -- python3 -m sglang.launch_server --tp 2 ...",
        "mooncake-hicache-sizing --tp-size 4 --hicache-size 64gb \\",
        "    --global-segment-size 8gb",
    ),
)
@sizing_options
@click.version_option(None, "--version", package_name="mooncake-preflight")
def command(
    *,
    tp_size: int | None,
    hicache_size: int | None,
    global_segment_size: int | None,
    arena_pool_size: int | None,
    hugepage_size: int | None,
    available_hugetlb: int | None,
    rule: str,
    pp_size: int,
    dp_size: int,
    local_buffer_size: int | None,
    segment_scope: str,
    protocol: str | None,
    nic_numa_nodes: tuple[int, ...] | None,
    rank_numa_nodes: tuple[int, ...] | None,
    use_hugepage: bool | None,
    mooncake_version: str | None,
    sglang_version: str | None,
    model_config: Any,
    gpu_memory: int | None,
    env_files: tuple[str, ...],
    explain: bool,
    as_json: bool,
    color: str,
    root: str,
    launch: tuple[str, ...],
) -> int:
    """Size the HugeTLB pages that an SGLang HiCache launch with Mooncake takes from this host.

    LAUNCH is the launch as it is: a shell script, a compose file or a Kubernetes manifest, or,
    after --, a command line. Nothing of it is executed. Without it, --tp-size, --hicache-size and
    --global-segment-size describe the launch. Sizes are powers of 1024 with a unit: b, kb, mb, gb,
    tb.

    Exit codes: 0 fits; 1 starts, but something asked for is not used; 2 will not start; 3 cannot
    be known; 64 usage error; 70 a defect of this program. With --rule documented: the helper's.
    """
    from checks.base.root import Root
    from preflight.base.usage_error import UsageError
    from preflight.sizing.sizing import size_launch
    from preflight.sizing.sizing_records import Flags

    host = Root()
    if root != "/":
        from checks.capture.capture import CaptureError, open_root

        try:
            host = open_root(root)
        except CaptureError as error:
            raise click.UsageError(str(error)) from None
    described = {
        "--tp-size": tp_size,
        "--hicache-size": hicache_size,
        "--global-segment-size": global_segment_size,
    }
    if launch:
        _refuse_beside_a_launch(
            {
                **described,
                "--arena-pool-size": arena_pool_size,
                "--hugepage-size": hugepage_size,
                "--local-buffer-size": local_buffer_size,
                "--protocol": protocol,
                "--use-hugepage": use_hugepage,
            }
        )
        from preflight.cli.sizing_source import Request, run_source

        request = Request(
            launch,
            env_files,
            available_hugetlb,
            nic_numa_nodes,
            rank_numa_nodes,
            mooncake_version,
            sglang_version,
            config_text(model_config),
            gpu_memory,
            explain,
            rule,
        )
        try:
            return run_source(request, os.environ, host, as_json, painter(color))
        except UsageError as error:
            raise click.UsageError(str(error)) from None
    if explain:
        raise click.UsageError("--explain is for a launch: give a script, or a command after --")
    if tp_size is None or hicache_size is None or global_segment_size is None:
        missing = next(name for name, value in described.items() if value is None)
        raise click.UsageError(f"Missing option '{missing}' (or a launch to read).")
    flags = Flags(
        tp_size=tp_size,
        hicache_bytes=hicache_size,
        segment_bytes=global_segment_size,
        arena_bytes=arena_pool_size,
        hugepage_bytes=hugepage_size,
        available_bytes=available_hugetlb,
        pp_size=pp_size,
        dp_size=dp_size,
        local_buffer_bytes=local_buffer_size,
        segment_scope=segment_scope,
        protocol=protocol,
        nic_nodes=nic_numa_nodes,
        rank_nodes=rank_numa_nodes,
        use_hugepage=use_hugepage,
        mooncake_version=mooncake_version,
        sglang_version=sglang_version,
    )
    try:
        sizing = size_launch(flags, os.environ, host)
    except UsageError as error:
        raise click.UsageError(str(error)) from None
    _print(sizing, rule, as_json, color)
    return sizing.exit_code if rule == "exact" else sizing.documented.exit_code


def _refuse_beside_a_launch(flags: dict[str, object]) -> None:
    given = [name for name, value in flags.items() if value is not None]
    if given:
        raise click.UsageError(
            f"{given[0]} beside a launch, which says it itself: drop one of them"
        )


def _print(sizing: Sizing, rule: str, as_json: bool, color: str) -> None:
    from preflight.sizing.advice import recommend

    advice = recommend(sizing)
    if as_json:
        from preflight.sizing.sizing_json import sizing_object

        say_json(sizing_object(sizing, advice, rule))
        return
    from preflight.sizing.sizing_text import sizing_text

    say(sizing_text(sizing, advice, rule, painter(color)), color=colored(color))


def main() -> None:
    """The console script: every way out has its exit code, and no traceback."""
    # A process that lives this short has nothing to collect, and looking costs a tenth of it.
    gc.disable()
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run with ``arguments``; returns the exit code."""

    def refused(exit_code: int, message: str) -> int:
        return refuse(arguments, exit_code, message)

    return run_command(command, "mooncake-hicache-sizing", arguments, refused)


def refuse(arguments: Sequence[str], exit_code: int, message: str) -> int:
    """An object where JSON was asked for and there is no answer; returns the exit code."""
    if "--json" in own_words(arguments):
        from preflight.sizing.sizing_json import error_object

        say_json(error_object(None, exit_code, message))
    return exit_code


if __name__ == "__main__":
    main()
