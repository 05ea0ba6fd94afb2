"""docs/json.md: each line of jq runs over what the commands of the page print."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
from pathlib import Path

import pytest

from preflight.cli.main import run
from tests.builders.synthetic import PATIENCE_SECONDS
from tests.paths import ROOT

LINES = re.findall(r"^(?:mooncake-preflight|jq) .*$", (ROOT / "docs/json.md").read_text(), re.M)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("jq") is None, reason="needs jq (apt-get install jq)")
def test_each_line_finds_what_it_is_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert sum(line.startswith("jq ") for line in LINES) == 10
    for line in LINES:
        words = shlex.split(line)
        if words[0] != "jq":
            behind = words.index(next(word for word in words if word in "<>"))
            command, file = words[1:behind], words[-1]
            patient = (
                ["--timeout", str(PATIENCE_SECONDS)] if command[0] in ("check", "plan") else []
            )
            run([*command, *patient])
            Path(file).write_text(capsys.readouterr().out)
            continue
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        said = done.stdout.splitlines()
        assert said, line
        assert not any("null" in each for each in said), said
