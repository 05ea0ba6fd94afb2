"""``fit``, ``capacity`` and ``plan`` name what of a launch is in none of their numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from preflight.cli.main import run
from tests.builders.launched import written
from tests.paths import ROOT

Out = pytest.CaptureFixture[str]

SERVER = "python3 -m sglang.launch_server --model-path Qwen/Qwen3-8B --enable-hierarchical-cache "
LAUNCH = f"lmcache_server 0.0.0.0 1 &\n{SERVER}--hicache-size 20\n"
LINE = "not read, and in no number here: lmcache_server 0.0.0.0 1 ("


@pytest.mark.slow
@pytest.mark.parametrize(("verb", "code"), [("fit", 3), ("capacity", 0), ("plan", 0)])
def test_each_verb_names_it_once_and_in_its_json(
    verb: str, code: int, tmp_path: Path, capsys: Out
) -> None:
    path = written(tmp_path, LAUNCH)
    assert run([verb, "--root", "demo:h800", str(path)]) == code
    assert " ".join(capsys.readouterr().out.split()).count(LINE) == 1
    run([verb, "--json", "--root", "demo:h800", str(path)])
    (said,) = json.loads(capsys.readouterr().out)["answer"]["unread"]
    assert said.startswith(LINE)
    path.write_text(f"{SERVER}--hicache-size 20\n")
    run([verb, "--json", "--root", "demo:h800", str(path)])
    assert json.loads(capsys.readouterr().out)["answer"]["unread"] == []


def test_an_artefact_of_plan_says_it_beside_itself(tmp_path: Path, capsys: Out) -> None:
    path = written(tmp_path, LAUNCH)
    run(["plan", "--format", "sysctl", "--root", "demo:h800", str(path)])
    out, err = capsys.readouterr()
    assert LINE in err
    assert LINE not in out


@pytest.mark.slow
def test_fit_changes_the_group_that_it_is_asked_about(tmp_path: Path, capsys: Out) -> None:
    path = written(
        tmp_path, f"{SERVER}--hicache-size 20\n{SERVER}--hicache-size 30 --page-size 64\n"
    )
    words = ["fit", "--root", "demo:h800", "--host-group", "2", str(path)]
    assert run(words) == 0
    out = capsys.readouterr().out
    assert "this launch starts 2 servers on one port" in " ".join(out.split())
    changed = [line for line in out.splitlines() if line.startswith(("+p", "-p"))]
    assert [line[0] for line in changed] == ["-", "+"]
    assert all("--page-size 64" in line for line in changed)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["kubernetes-entrypoint.yaml", "kubernetes-init.yaml"])
def test_what_a_pod_gets_is_unknown_from_outside_and_has_a_next_step(
    name: str, capsys: Out
) -> None:
    path = ROOT / "docs" / "examples" / name
    assert run(["check", "--json", "--root", "demo:h800", str(path)]) == 3
    found = json.loads(capsys.readouterr().out)["findings"]
    unknown = {one["check"]: one["advice"] for one in found if one["status"] == "unknown"}
    assert {"memlock.limit", "limits.nofile", "service.address"} <= unknown.keys()
    assert all(unknown.values()), unknown
