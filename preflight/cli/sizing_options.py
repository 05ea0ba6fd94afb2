"""The flags of ``mooncake-hicache-sizing``: the documented ones, and ours."""

from __future__ import annotations

import click

from preflight.cli.launch_options import (
    COLOR,
    LAUNCH,
    LAUNCH_OPTIONS,
    MOONCAKE_VERSION,
    NIC_NODES,
    RANK_NODES,
    SIZE,
    Command,
    with_options,
)


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
        NIC_NODES,
        RANK_NODES,
        click.option(
            "--use-hugepage/--no-use-hugepage",
            default=None,
            help="MC_STORE_USE_HUGEPAGE present or not. Default: as the environment has it, or on.",
        ),
        MOONCAKE_VERSION,
        *LAUNCH_OPTIONS,
        click.option(
            "--explain", is_flag=True, help="A launch's needs, each with its formula and inputs."
        ),
        click.option("--json", "as_json", is_flag=True, help="One JSON object, always."),
        COLOR,
        click.option("--root", default="/", hidden=True),
        LAUNCH,
    ]
    return with_options(function, tuple(options))
