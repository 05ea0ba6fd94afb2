"""``mooncake-preflight fleet``: the same judgement over many nodes, and what only many can show."""

from __future__ import annotations

import click

from preflight.lazy_commands import LazyGroup

CONTEXT = {"help_option_names": ["-h", "--help"], "max_content_width": 100}

# Each declaration is a module of its own: --help of one must not pay for the others.
LATER = {
    "check": "preflight.fleet.check_declaration:check",
    "merge": "preflight.fleet.merge_declaration:merge",
    "pair-connect": "preflight.fleet.pairs_connect_declaration:pair_connect",
    "pair-listen": "preflight.fleet.pairs_listen_declaration:pair_listen",
    "pairs": "preflight.fleet.pairs_declaration:pairs",
    "rails": "preflight.fleet.rails_declaration:rails",
    "run": "preflight.fleet.run_declaration:run",
    "manifest": "preflight.fleet.manifest_declaration:manifest",
    "collect": "preflight.fleet.collect_declaration:collect",
    "node": "preflight.fleet.node_declaration:node",
}


@click.group(cls=LazyGroup, later=LATER, context_settings=CONTEXT)
def fleet() -> None:
    """Check every node of a cluster, over ssh, Slurm or Kubernetes, and merge what they say.

    check asks the nodes over ssh, run under Slurm; manifest prints a Kubernetes object and collect
    reads its pods' logs. merge makes one answer of the nodes' reports; node prints one.
    """
