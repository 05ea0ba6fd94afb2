"""The flags of ``mooncake-hicache-sizing``: the documented ones, and ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from preflight.sizes import bare_number, parse_size

if TYPE_CHECKING:
    AnyParamType = click.ParamType[Any]
else:
    AnyParamType = click.ParamType  # generic for type checkers alone, before click 8.4

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


def sizing_options(function: Command) -> Command:
    """The documented flags first, then ours, in the order in which --help shows them."""
    choice = click.Choice
    options = [
        click.option("--tp-size", type=int, help="Tensor-parallel ranks."),
        click.option("--hicache-size", type=SIZE, help="L2 host pool of one rank, as 64gb."),
        click.option(
            "--global-segment-size",
            type=SIZE,
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
        click.option("--sglang-version", help="Of a launch, as 0.5.23, which is the default."),
        click.option(
            "--model-config", type=click.File(), help="A launch's config.json, where not found."
        ),
        click.option(
            "--gpu-memory", type=SIZE, help="Of a launch's smallest GPU, for --hicache-ratio."
        ),
        click.option(
            "--env-file",
            "env_files",
            multiple=True,
            help="More environment for a launch, in docker's form; may be given again.",
        ),
        click.option(
            "--explain", is_flag=True, help="A launch's needs, each with its formula and inputs."
        ),
        click.option("--json", "as_json", is_flag=True, help="One JSON object, always."),
        click.option(
            "--color", type=choice(["auto", "always", "never"]), default="auto", show_default=True
        ),
        click.option("--root", default="/", hidden=True),
        click.argument("launch", nargs=-1, type=click.UNPROCESSED),
    ]
    for option in reversed(options):
        function = option(function)
    return function
