"""What memlock.limit says inside a container of a launch that registers a size with one NIC.

The limits are those of the container; the NIC is said to be there, since the machines of the tests
have none. ``tests/lab`` has a NIC, and registers for real.
"""

from __future__ import annotations

import json
import sys

from checks.framework.root import Root
from checks.limits.facts import read_limits
from checks.run_checks.facts import Facts
from checks.system.facts import read_system
from tests.checks.launches import one_finding
from tests.checks.limit_hosts import launch, rank, rdma


def status_of(size: int) -> str:
    root, needs = Root("/"), launch(rank(size=size))
    topics = {
        "limits": read_limits(root, needs),
        "system": read_system(root, needs),
        "rdma": rdma(1),
    }
    return one_finding(Facts(topics), needs, "memlock.limit").status.value


if __name__ == "__main__":
    print(json.dumps({size: status_of(int(size)) for size in sys.argv[1:]}))
