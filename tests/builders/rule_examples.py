"""Examples of rules: a launch in which one holds, and the same launch written right."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from preflight.launch_problems.rules.launch_rules import findings
from preflight.launches.source import Command
from tests.builders.launch_text import MASTER, STORE, understood

Line = str | Command | tuple[str, Mapping[str, str]]


class Example(NamedTuple):
    """A launch in which a rule holds, what it then says, and the launch in which it does not."""

    id: str
    says: str
    wrong: tuple[Line, ...] = ()
    right: tuple[Line, ...] = ()
    files: Mapping[str, str] = {}

    def of(
        self,
        wrong: tuple[Line, ...],
        right: tuple[Line, ...],
        files: Mapping[str, str] | None = None,
    ) -> Example:
        return self._replace(wrong=wrong, right=right, files=files or {})


def extra(json: str, line: str = STORE) -> str:
    return f"{line} --hicache-storage-backend-extra-config '{json}'"


def env(**more: str) -> tuple[str, dict[str, str]]:
    return (STORE, {**MASTER, **more})


GOOD = env(MC_STORE_USE_HUGEPAGE="1")
ADDRESS = '"master_server_address": "10.0.0.1:50051"'
CONFIG = "SGLANG_HICACHE_MOONCAKE_CONFIG_PATH"


def name_of(example: Example) -> str:
    return f"{example.id}: {example.says[:40]}"


def prove(example: Example) -> None:
    """The rule says so of the wrong launch, and nothing of the right one."""
    found = findings(understood(*example.wrong, files=example.files))
    said = [finding.text for finding in found if finding.id == example.id]
    assert any(example.says in text for text in said), [(f.id, f.text) for f in found]
    right = findings(understood(*example.right, files=example.files))
    assert [f.text for f in right if f.id == example.id] == []
