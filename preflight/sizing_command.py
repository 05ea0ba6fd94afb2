"""``mooncake-hicache-sizing``: the huge pages that a launch takes, to the page, and what to set."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from preflight.sizes import bare_number, parse_size

if TYPE_CHECKING:
    from preflight.sizing import Sizing

    AnyParamType = click.ParamType[Any]
else:
    AnyParamType = click.ParamType  # generic for type checkers alone, before click 8.4

EXIT_USAGE = 64  # EX_USAGE
EXIT_DEFECT = 70  # EX_SOFTWARE
EXIT_INTERRUPTED = 130

Command = TypeVar("Command", bound=Callable[..., Any])


class Size(AnyParamType):
    """A byte size in the documented grammar; a bare number is refused, with both spellings."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        try:
            return parse_size(value)
        except ValueError as error:
            self.fail(_with_sglang_spelling(str(error), value, param), param, ctx)


def _with_sglang_spelling(message: str, value: str, param: click.Parameter | None) -> str:
    """A bare --hicache-size is SGLang's own spelling, and means 10^9 bytes there."""
    number = value.strip()
    bare = number.isascii() and number.isdecimal() and len(number) <= 9
    if not bare or param is None or param.name != "hicache_size":
        return message
    return (
        f"{bare_number(value, number)}. SGLang's own --hicache-size {number} is {number} x 10^9 "
        f"bytes: write {int(number) * 10**9}b for that"
    )


class Nodes(AnyParamType):
    """NUMA nodes: ``0,1``, ``0-3`` or ``none``. ``repeats`` keeps order and repetitions."""

    name = "nodes"

    def __init__(self, repeats: bool = False) -> None:
        self._repeats = repeats

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        from checks.numa import parse_node_list

        if isinstance(value, tuple):
            return value
        if value.strip().lower() == "none":
            return ()
        try:
            if not self._repeats:
                return parse_node_list(value)
            return tuple(node for part in value.split(",") for node in parse_node_list(part))
        except ValueError:
            self.fail(f"{value!r} is not a list of NUMA nodes: write 0,1 or none", param, ctx)


SIZE = Size()


def _options(function: Command) -> Command:
    """The documented flags first, then ours, in the order in which --help shows them."""
    choice = click.Choice
    options = [
        click.option("--tp-size", type=int, required=True, help="Tensor-parallel ranks."),
        click.option(
            "--hicache-size", type=SIZE, required=True, help="L2 host pool of one rank, as 64gb."
        ),
        click.option(
            "--global-segment-size",
            type=SIZE,
            required=True,
            help="What the store contributes, as 8gb: of the whole instance (see --segment-scope).",
        ),
        click.option(
            "--arena-pool-size",
            type=SIZE,
            help="MC_MMAP_ARENA_POOL_SIZE, per rank. Default: as the environment has it, or none.",
        ),
        click.option("--hugepage-size", type=SIZE, help="2mb (Mooncake's default), 1gb, or 512mb."),
        click.option(
            "--available-hugetlb",
            type=SIZE,
            help="Size the launch against this pool instead of what the kernel has.",
        ),
        click.option(
            "--rule",
            type=choice(["exact", "documented"]),
            default="exact",
            show_default=True,
            help="Whose status and exit code to give; both are shown.",
        ),
        click.option("--pp-size", type=int, default=1, show_default=True, help="Pipeline ranks."),
        click.option("--dp-size", type=int, default=1, show_default=True, help="Replicas."),
        click.option(
            "--local-buffer-size", type=SIZE, help="Of each process. Default: 16mb, as in SGLang."
        ),
        click.option(
            "--segment-scope",
            type=choice(["instance", "process"]),
            default="instance",
            show_default=True,
            help="instance: divided by tp x pp, as SGLang does. process: of each process "
            "(store service, mooncake_client, vLLM).",
        ),
        click.option(
            "--protocol",
            type=choice(["rdma", "tcp"]),
            help="Default: MOONCAKE_PROTOCOL, or rdma as in SGLang.",
        ),
        click.option(
            "--nic-numa-nodes",
            type=Nodes(),
            help="NUMA nodes of the NICs in use, as 0,1, or none. Default: this host's.",
        ),
        click.option(
            "--rank-numa-nodes",
            type=Nodes(repeats=True),
            help="The node that each rank is bound to, as 0,0,1,1, or none. Default: its GPU's.",
        ),
        click.option(
            "--use-hugepage/--no-use-hugepage",
            default=None,
            help="MC_STORE_USE_HUGEPAGE present or not. Default: as the environment has it, or on.",
        ),
        click.option("--mooncake-version", help="As 0.3.13.post1. Default: the installed one."),
        click.option("--json", "as_json", is_flag=True, help="One JSON object, always."),
        click.option(
            "--color", type=choice(["auto", "always", "never"]), default="auto", show_default=True
        ),
        click.option("--root", default="/", hidden=True),
    ]
    for option in reversed(options):
        function = option(function)
    return function


@click.command(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@_options
@click.version_option(None, "--version", package_name="mooncake-preflight")
def command(
    *,
    tp_size: int,
    hicache_size: int,
    global_segment_size: int,
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
    as_json: bool,
    color: str,
    root: str,
) -> int:
    """Size the HugeTLB pages that an SGLang HiCache launch with Mooncake takes from this host.

    Sizes are powers of 1024 with a unit: b, kb, mb, gb, tb.

    Exit codes: 0 fits; 1 starts, but something asked for is not used; 2 will not start; 3 cannot
    be known; 64 usage error; 70 a defect of this program. With --rule documented: the helper's.
    """
    from checks.root import Root
    from preflight.sizing import size_launch
    from preflight.sizing_inputs import Flags, UsageError

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
    )
    try:
        sizing = size_launch(flags, os.environ, Root(root))
    except UsageError as error:
        raise click.UsageError(str(error)) from None
    _print(sizing, rule, as_json, color)
    return sizing.exit_code if rule == "exact" else sizing.documented.exit_code


def _print(sizing: Sizing, rule: str, as_json: bool, color: str) -> None:
    from preflight.advice import recommend

    advice = recommend(sizing)
    if as_json:
        from preflight.sizing_json import sizing_object

        _print_json(sizing_object(sizing, advice, rule))
        return
    from preflight.sizing_text import sizing_text

    colored = _colored(color)

    def paint(text: str, colour: str) -> str:
        return click.style(text, fg=colour, bold=True) if colored else text

    click.echo(sizing_text(sizing, advice, rule, paint), color=colored)


def _print_json(answer: dict[str, Any]) -> None:
    import json

    click.echo(json.dumps(answer, indent=2))


def _colored(color: str) -> bool:
    if color != "auto":
        return color == "always"
    if "NO_COLOR" in os.environ:
        return False
    if os.environ.get("CLICOLOR_FORCE", "0") != "0":
        return True
    return sys.stdout.isatty() and os.environ.get("TERM") != "dumb"


def main() -> None:
    """The console script: every way out has its exit code, and no traceback."""
    arguments = sys.argv[1:]
    sys.exit(run(arguments))


def run(arguments: list[str]) -> int:
    """Run with ``arguments``; returns the exit code."""
    try:
        return int(command.main(arguments, "mooncake-hicache-sizing", standalone_mode=False) or 0)
    except click.ClickException as error:
        return _refuse(arguments, EXIT_USAGE, error.format_message(), error)
    except (click.Abort, KeyboardInterrupt):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # The reader went away; what it did not read is no failure of ours.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except Exception as error:
        kind = type(error).__name__
        message = f"a defect of mooncake-hicache-sizing, please report it: {kind}: {error}"
        return _refuse(arguments, EXIT_DEFECT, message, None)


def _refuse(
    arguments: list[str], exit_code: int, message: str, error: click.ClickException | None
) -> int:
    """Say why there is no answer: on standard error, and as an object where JSON was asked for."""
    click.echo(f"mooncake-hicache-sizing: {message}", err=True)
    if isinstance(error, click.UsageError):
        click.echo("Try 'mooncake-hicache-sizing --help'.", err=True)
    if "--json" in arguments:
        from preflight.sizing_json import error_object

        _print_json(error_object(None, exit_code, message))
    return exit_code


if __name__ == "__main__":
    main()
