"""``--config FILE`` of SGLang: its entries count as if they stood first on the command line."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from preflight.engines.programs.sglang_arguments import _as_words
from preflight.engines.sglang.server import SglangServer
from tests.processes.test_unread import sized
from tests.tables import each_row

YAML = """\
model-path: m
tp_size: 4
enable-hierarchical-cache: true
disable-cuda-graph: false
hicache-storage-backend: mooncake
hicache-storage-backend-extra-config: {master_server_address: "a:1", global_segment_size: 7gb}
"""


def server(folder: Path, line: str, **files: str) -> SglangServer:
    texts = {f"{name}.yaml": text for name, text in files.items()}
    script = f"python3 -m sglang.launch_server {line}\n"
    (process,) = sized(folder, script, texts).inputs.processes
    assert process.server is not None
    return process.server


def test_the_file_is_read_and_the_command_line_beats_it(tmp_path: Path) -> None:
    found = server(tmp_path, "--config c.yaml --tp 2", c=YAML)
    assert found.arguments.error is None
    assert (found.value("model_path"), found.value("tp_size"), found.hicache) == ("m", 2, True)
    assert found.store is not None
    assert found.store.value("global_segment_size") == "7gb"


def test_a_file_that_cannot_be_read_leaves_all_unknown(tmp_path: Path) -> None:
    found = server(tmp_path, "--model-path m --config missing.yaml")
    assert found.arguments.unread is not None
    assert "missing.yaml" in found.arguments.unread.reason


@pytest.mark.parametrize(
    ("line", "text", "says"),
    [
        ("--config c.json", "", "must be YAML format, got: .json"),
        ("--config c.yaml --config c.yaml", "", "Multiple config files"),
        ("--config", "", "No config file specified"),
        ("--config c.yaml", "[1]", "a dictionary at root level"),
        ("--config c.yaml", "tp: 2", "required: --model-path"),
        ("--config c.yaml", "{model-path: m, tp: [1, 2, x]}", "error"),
    ],
)
def test_what_sglang_refuses(tmp_path: Path, line: str, text: str, says: str) -> None:
    found = server(tmp_path, line, c=text)
    problem = found.arguments.error or f"error: {found.arguments.unrecognized}"
    assert says in problem


@each_row(
    ("entries", "words"),
    [
        ({"enable-metrics": True}, "--enable-metrics"),
        ({"enable_metrics": False}, ""),
        ({"tp": 2, "page-size": "64"}, "--tp 2 --page-size 64"),
        ({"tp": True}, "--tp true"),
        ({"other": True}, "--other true"),
        ({"other": False}, "--other false"),
        ({"other": []}, ""),
        ({"other": [1, "a"]}, "--other 1 a"),
        ({"other": {"a": None}}, '--other {"a": null}'),
    ],
)
def test_entries_as_words(entries: dict[str, object], words: str) -> None:
    """A switch stands alone if it is on, and is left out if it is off; other values are written."""
    switch = {"flags": ["--enable-metrics"], "name": "enable_metrics", "kind": "constant"}
    size = {"flags": ["--tp-size", "--tp"], "name": "tp_size", "kind": "value"}
    table: Any = SimpleNamespace(rows=[{**switch, "value": True}, size])
    assert " ".join(_as_words(entries, table)) == words
