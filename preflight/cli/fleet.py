"""``mooncake-preflight fleet``: the same judgement over many nodes, and what only many can show."""

from __future__ import annotations

import click

from preflight.cli.options import CONTEXT, LazyGroup

# Each declaration is a module of its own: --help of one must not pay for the others.
LATER = {
    "check": "preflight.cli.fleet_check:check",
    "merge": "preflight.cli.fleet_merge:merge",
    "pair-connect": "preflight.cli.fleet_pairs_connect:pair_connect",
    "pair-listen": "preflight.cli.fleet_pairs_listen:pair_listen",
    "pairs": "preflight.cli.fleet_pairs:pairs",
    "rails": "preflight.cli.fleet_rails:rails",
    "run": "preflight.cli.fleet_run:run",
    "manifest": "preflight.cli.fleet_manifest:manifest",
    "collect": "preflight.cli.fleet_collect:collect",
    "node": "preflight.cli.fleet_node:node",
}


@click.group(cls=LazyGroup, later={"Commands": LATER}, context_settings=CONTEXT)
def fleet() -> None:
    """Check every node of a cluster, over ssh, Slurm or Kubernetes, and merge what they say.

    check asks the nodes over ssh, run under Slurm; manifest prints a Kubernetes object and collect
    reads its pods' logs. merge makes one answer of the nodes' reports; node prints one.
    """
