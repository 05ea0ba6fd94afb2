"""Asks the real Mooncake for its topology inside the guest, beside what is foretold of it.

Writes one line of JSON: for each case the locations of both.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from checks.base.needs import RdmaUse
from checks.base.root import Root
from checks.base.unknown import Unknown
from checks.placement.mooncake_topology import ANY_PROCESS, View, measured, predicted
from checks.rdma.facts import RdmaFacts
from checks.run.facts import Facts, read_facts

MARK = "topologies: "
TOPICS = ("gpus", "numa", "pci", "rdma")
CUSTOM = "/run/topology.json"
ROWS = {"cpu:0": [["rxe1"], []], "cpu:1": [["rxe1"], ["rxe0"]]}
# (name, the nodes that the preloaded library gives the devices, device names, environment)
CASES: tuple[tuple[str, dict[str, int], tuple[str, ...], dict[str, str]], ...] = (
    ("no nodes", {}, (), {}),
    ("two nodes", {"rxe0": 0, "rxe1": 1}, (), {}),
    ("named", {"rxe0": 0, "rxe1": 1}, ("rxe1",), {}),
    ("filtered", {"rxe0": 0, "rxe1": 1}, (), {"MC_TE_FILTERS": "rxe0"}),
    ("custom", {}, (), {"MC_CUSTOM_TOPO_JSON": CUSTOM}),
    # Listed, then not opened for want of that port: taken out of every location again.
    ("no such port", {"rxe0": 0, "rxe1": 1}, (), {"MC_IB_PORT": "2"}),
)


def ask(
    facts: Facts, nodes: Mapping[str, int], devices: tuple[str, ...], variables: Mapping[str, str]
) -> dict[str, Any]:
    process = ANY_PROCESS._replace(environment=variables, rdma=RdmaUse(devices, "--device"))
    rdma: RdmaFacts = facts.rdma
    given = tuple(nic._replace(node=nodes.get(nic.name)) for nic in rdma.present)
    here = Facts(
        {name: facts.topic(name) for name in TOPICS}
        | {"rdma": rdma._replace(nics=given, topologies={CUSTOM: Path(CUSTOM).read_text()})}
    )
    if nodes:
        os.environ["LD_PRELOAD"] = os.environ["NIC_NODES_LIBRARY"]
    found = measured(Root(), sys.executable, process, devices)
    os.environ.pop("LD_PRELOAD", None)
    # The wheel of the guest has no CUDA.
    view = predicted(here.numa, here.pci, here.gpus, here.rdma, process, None, knows_gpus=False)
    return {
        "predicted": rows(view.locations if isinstance(view, View) else view),
        "measured": rows(found),
    }


def rows(places: Any) -> Any:
    if isinstance(places, Unknown):
        return places.reason
    return [[place.name, place.preferred, place.others] for place in places]


def main() -> None:
    Path(CUSTOM).write_text(json.dumps(ROWS))
    facts = read_facts(Root(), None, 60, TOPICS)
    answers = {
        name: ask(facts, nodes, devices, variables) for name, nodes, devices, variables in CASES
    }
    print(f"{MARK}{json.dumps(answers)}", flush=True)


if __name__ == "__main__":
    main()
