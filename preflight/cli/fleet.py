"""``mooncake-preflight fleet``: the same judgement over many nodes, and what only many can show."""

from __future__ import annotations

import click

from preflight.cli.commands import CONTEXT, LazyGroup, examples_text

# Each declaration is a module of its own: --help of one must not pay for the others.
LATER = {
    "Every node": {
        "check": "preflight.cli.fleet_check:check",
        "observe": "preflight.cli.fleet_observe:observe",
    },
    "Between nodes": {
        "rails": "preflight.cli.fleet_rails:rails",
        "measure": "preflight.cli.fleet_measure:measure",
    },
    "Their reports": {"merge": "preflight.cli.fleet_merge:merge"},
}
GONE = {
    "collect": "the logs of pods are read by: "
    "kubectl logs -l job-name=mooncake-preflight --tail=-1 | mooncake-preflight fleet merge -",
    "manifest": "docs/howto-kubernetes.md has a Job to fill in",
    "pairs": "fleet pairs is now: mooncake-preflight fleet measure",
    "node": "a node's report is printed by: mooncake-preflight check --json",
    "run": "the nodes of a job are asked by: "
    "srun --label mooncake-preflight check --json launch.sh | mooncake-preflight fleet merge -",
}


@click.group(
    cls=LazyGroup,
    later=LATER,
    gone=GONE,
    context_settings=CONTEXT,
    epilog=examples_text(
        "mooncake-preflight fleet check --nodes 'gpu[001-064]' launch.sh",
        "srun --label mooncake-preflight check --json launch.sh | mooncake-preflight fleet merge -",
        "mooncake-preflight fleet merge reports/",
    ),
)
def fleet() -> None:
    """Check every node of a cluster over ssh, and merge what nodes say, however they were asked.

    check asks the nodes over ssh. merge makes one answer of what check --json printed on each,
    under Slurm, in Kubernetes or by hand; rails says which NIC reaches which, and measure moves
    memory between each two nodes.
    """
