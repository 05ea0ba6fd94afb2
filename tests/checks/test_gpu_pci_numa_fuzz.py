"""Damaged hosts: whatever a file or an answer holds, nothing raises and no check is defective."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from checks.base.finding import Status
from checks.base.root import CALLS_FILE
from checks.base.tree_root import TreeRoot
from checks.run.facts import READERS, read_facts
from checks.run.runner import judge
from tests.builders.synthetic import GIB, PATIENCE_SECONDS, gpu_host, tree_of
from tests.checks.judged import checks_of
from tests.checks.ranks import launch, rank

CHECKS = tuple(checks_of("numa", "gpu", "pci").values())
TOPICS = ("numa", "pci", "gpus", "rdma", "memory", "system")
NEEDS = launch(*(rank(number, gpu_registered_bytes=GIB) for number in range(2)))
TREE = tree_of(replace(gpu_host(), gpus=gpu_host().gpus[:2], nics=gpu_host().nics[:2]))
# What the readers of these topics ask for; other files would be drawn in vain.
FILES = sorted(
    name
    for name in TREE.files
    if name.startswith(("/proc/self/", "/proc/modules", "/proc/driver", "/sys/devices/system/node"))
    or "/0000:1" in name
    or "iommu_groups" in name
)
CALLS = sorted(name for name in TREE.calls if name.split(".")[0] in ("numa", "pci", "gpus"))

contents = st.one_of(
    st.binary(max_size=60),
    st.text(max_size=60).map(str.encode),
    st.sampled_from([b"", b"\0", b"-1", b"9" * 5000, b"0-99999999999", b"\xff\xfe", b"1\n2\n3"]),
)
answers = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=6,
)


def root_of(files: dict[str, bytes], calls: dict[str, Any]) -> TreeRoot:
    written = {name: content.encode() for name, content in TREE.files.items()} | files
    written[f"/{CALLS_FILE}"] = json.dumps(TREE.calls | calls).encode()
    return TreeRoot(written, TREE.links, {})


def statuses(files: dict[str, bytes], calls: dict[str, Any]) -> set[Status]:
    """Of all checks, none of which may be defective."""
    facts = read_facts(root_of(files, calls), NEEDS, PATIENCE_SECONDS, TOPICS)
    for topic in ("numa", "pci", "gpus"):
        assert topic in READERS
        getattr(facts, topic)  # raises where the reader did
    found = set()
    for needs in (None, NEEDS):
        for finding in judge(facts, needs, CHECKS):
            assert not finding.text.startswith("defect"), finding
            found.add(finding.status)
    return found


def test_the_undamaged_host_passes() -> None:
    assert statuses({}, {}) == {Status.PASS, Status.SKIP}


@given(st.dictionaries(st.sampled_from(FILES), contents, min_size=1, max_size=4))
def test_any_content_of_files(files: dict[str, bytes]) -> None:
    statuses(files, {})


@given(st.dictionaries(st.sampled_from(CALLS), answers, min_size=1, max_size=3))
def test_any_answer_of_calls(calls: dict[str, Any]) -> None:
    statuses({}, calls)


DEVICE = TREE.calls["gpus.nvml"]["devices"][0]


@given(st.sampled_from(sorted(DEVICE)), answers)
def test_any_value_of_a_gpu(name: str, value: Any) -> None:
    device = DEVICE | {name: value}
    statuses({}, {"gpus.nvml": TREE.calls["gpus.nvml"] | {"devices": [device, DEVICE]}})
