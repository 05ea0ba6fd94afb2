"""The pages of what is found in a launch, and between the nodes of a fleet: a file each, here."""

import os

from checks.framework.check import Check

PAGES = os.path.dirname(__file__)
GATE = Check("sglang.admission-gate", (), PAGES)
SIZES = Check("launch.sizes", (), PAGES)
MAPPING = Check("launch.cannot-map", (), PAGES)
MISREAD = Check("launch.misread", (), PAGES)
UNUSED = Check("launch.unused", (), PAGES)
ASSUMED = Check("launch.assumed", (), PAGES)
NOT_READ = Check("launch.not-read", (), PAGES)
KEYS = Check("store.keys", (), PAGES)
WAIVER = Check("launch.waiver", (), PAGES)
# Judged by preflight.launch_problems.advisories, which knows the host too.
ADVISORIES = Check("launch.advisories", (), PAGES)
# What measure finds, and check with --measured.
MEASURED = tuple(
    Check(f"measure.{name}", (), PAGES)
    for name in ("transport", "nic", "registration", "ready", "storage", "fetch")
)
# What observe finds, of what runs.
OBSERVED = tuple(
    Check(f"observe.{name}", (), PAGES)
    for name in (
        *("launch", "release", "huge-pages", "numa-node", "transport", "registered"),
        *("store-pool", "locked-memory", "open-files", "gpu-memory", "traffic"),
        *("l2-hits", "l3-hits", "store-use", "ssd-reads"),
    )
)
# What launch_checks finds: declared here, where no reader of launches is loaded with it.
LAUNCH_CHECKS = (
    *(SIZES, NOT_READ, MAPPING, MISREAD, UNUSED, ASSUMED),
    *(ADVISORIES, GATE, KEYS, WAIVER),
)
