"""The pages of a rehearsal's answer, read from its JSON as anybody would."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Pages:
    """total: by page size, over all nodes. nodes: of each node, over all sizes."""

    total: Mapping[int, int]
    nodes: Mapping[int, int]

    def on(self, node: int) -> int:
        return self.nodes.get(node, 0)


def _pages(rows: list[dict[str, Any]] | None) -> Pages | None:
    if rows is None:
        return None
    total = {row["page_size_bytes"]: row["pages"] for row in rows if row["numa_node"] is None}
    nodes: dict[int, int] = {}
    for row in rows:
        if row["numa_node"] is not None:
            nodes[row["numa_node"]] = nodes.get(row["numa_node"], 0) + row["pages"]
    return Pages(total, nodes)


def measured_pages(step: Mapping[str, Any]) -> Pages | None:
    """None where the process died."""
    return _pages(step["measured"]["pages"])


def predicted_pages(step: Mapping[str, Any]) -> Pages:
    found = _pages(step["predicted"]["pages"])
    assert found is not None, step
    return found


def all_pages(answer: Mapping[str, Any]) -> Mapping[int, int]:
    """What was in use at the end, by page size."""
    found = _pages(answer["pages"])
    return {} if found is None else found.total
