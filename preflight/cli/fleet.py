"""``mooncake-preflight fleet``: the same judgement over many nodes, and what only many can show."""

from __future__ import annotations

import click

from preflight.cli.commands import CONTEXT, LazyGroup, examples_text

# Each declaration is a module of its own: --help of one must not pay for the others.
LATER = {
    "Every node": {
        "check": "preflight.cli.fleet_check:check",
        "run": "preflight.cli.fleet_run:run",
        "manifest": "preflight.cli.fleet_manifest:manifest",
        "collect": "preflight.cli.fleet_collect:collect",
    },
    "Between nodes": {
        "rails": "preflight.cli.fleet_rails:rails",
        "pairs": "preflight.cli.fleet_pairs:pairs",
        "pair-listen": "preflight.cli.fleet_pairs_listen:pair_listen",
        "pair-connect": "preflight.cli.fleet_pairs_connect:pair_connect",
    },
    "Their reports": {
        "merge": "preflight.cli.fleet_merge:merge",
        "node": "preflight.cli.fleet_node:node",
    },
}


@click.group(
    cls=LazyGroup,
    later=LATER,
    context_settings=CONTEXT,
    epilog=examples_text(
        "mooncake-preflight fleet check --nodes 'gpu[001-064]' launch.sh",
        "salloc -N64 mooncake-preflight fleet run launch.sh",
        "mooncake-preflight fleet manifest --image registry.example/sglang:1 launch.yaml",
        "mooncake-preflight fleet merge reports/",
    ),
)
def fleet() -> None:
    """Check every node of a cluster, over ssh, Slurm or Kubernetes, and merge what they say.

    check asks the nodes over ssh, run under Slurm; manifest prints a Kubernetes object and collect
    reads its pods' logs. merge makes one answer of the nodes' reports; node prints one.
    """
