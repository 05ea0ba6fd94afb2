"""A host in words is the same for every command that takes one: one parser, one set of facts.

A size or a number that nobody can mean is refused.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from checks.framework.unknown import Unknown
from checks.host_snapshot.capture import open_root
from checks.host_snapshot.described import DescribedRoot
from checks.host_snapshot.root_names import is_description
from checks.run_checks.facts import read_facts
from preflight.cli.main import run as run_preflight
from preflight.cli.sizing import run as run_sizing

LAUNCH = (
    "MOONCAKE_MASTER=127.0.0.1:50051 MOONCAKE_PROTOCOL={protocol} MOONCAKE_GLOBAL_SEGMENT_SIZE=8gb "
    "python3 -m sglang.launch_server --model-path Qwen/Qwen3-14B --tp 8 --hicache-size 10 "
    "--enable-hierarchical-cache --hicache-storage-backend mooncake --hicache-mem-layout page_first"
)
WORDS = ("--memory", "1tb", "--gpus", "8xH800", "--nics", "8xmlx5", "--numa", "2")
TABLE = """memory = "1tb"\ngpus = "8xH800"\nnics = "8xmlx5"\nnuma = 2\n"""


@pytest.fixture
def script(tmp_path: Path) -> str:
    path = tmp_path / "launch.sh"
    path.write_text(LAUNCH.format(protocol="rdma"))
    return str(path)


def test_options_and_file_describe_the_same_host_to_all_five_commands(
    script: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the assumptions of it are said, once, beside the answer."""
    file = tmp_path / "host.toml"
    file.write_text(TABLE)
    runs: tuple[tuple[Callable[[list[str]], int], tuple[str, ...]], ...] = (
        (run_preflight, ("check", "-v")),
        (run_preflight, ("plan",)),
        (run_preflight, ("capacity",)),
        (run_preflight, ("fit", "--goal", "l2")),
        (run_sizing, ()),
    )
    for run, command in runs:
        said = []
        for host in (WORDS, ("--host", str(file))):
            code = run([*command, *host, script])
            out, err = capsys.readouterr()
            assert code in (0, 1, 3), (command, out, err)
            assert (out + err).count("MemTotal 1008.00 GiB") == 1, command
            words = "described:memory=1024gb,gpus=8xH800,nics=8xmlx5,numa=2"
            said.append("".join(out.split()).replace(words, str(file)))
        assert said[0] == said[1], command


@pytest.mark.parametrize("protocol", ["rdma", "tcp"])
def test_what_is_described_is_known_and_nothing_else_is(
    protocol: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only the software and the services of a host that is described in full are unknown."""
    launch = tmp_path / "launch.sh"
    launch.write_text(LAUNCH.format(protocol=protocol))
    run_preflight(["check", *WORDS, "--json", str(launch)])
    findings = json.loads(capsys.readouterr().out)["findings"]
    unknown = {each["check"] for each in findings if each["status"] == "unknown"}
    assert {check.partition(".")[0] for check in unknown} <= {"software", "service"}


def test_devices_that_nobody_described_are_unknown_in_every_fact(
    tmp_path: Path, script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    root = open_root("described:memory=1tb")
    assert isinstance(root, DescribedRoot)
    facts: Any = read_facts(root, None, topics=("gpus", "rdma", "pci"))
    assert isinstance(facts.rdma.nics, Unknown)
    assert isinstance(facts.gpus.accelerators, Unknown)
    assert run_sizing(["--memory", "1tb", script]) in (0, 3)
    assert "no RDMA device" not in capsys.readouterr().out
    run_preflight(["check", "--memory", "1tb", "--json", script])
    findings = json.loads(capsys.readouterr().out)["findings"]
    status = {each["check"]: each["status"] for each in findings}
    assert status["gpu.count"] == status["rdma.no-device"] == "unknown"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gpus = '8xH800'", "give --memory, as 2tb"),
        ("memory = '1tb'\ndisks = 2", "disks: it describes a host by memory, gpus, nics, numa"),
        ("memory = '1tb'\nnuma = 65", "must be 1 to 64"),
        ("memory = 'much'", "memory of a described host"),
        ("memory = ", "host.toml"),
    ],
)
def test_a_file_that_describes_no_host_is_refused(
    text: str, said: str, script: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "host.toml"
    file.write_text(text)
    for run, words in ((run_preflight, ["check"]), (run_sizing, [])):
        assert run([*words, "--host", str(file), script]) == 64
        assert said in " ".join(capsys.readouterr().err.split())


def test_a_host_and_a_description_are_one_too_many(
    script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_preflight(["plan", "--root", "demo:h800", "--memory", "1tb", script]) == 64
    assert "give the one or the other" in capsys.readouterr().err
    assert not is_description("nowhere.toml")


@pytest.mark.parametrize(
    ("option", "value"),
    [("--gpu-memory", "0gb"), ("--gpu-memory", "0"), ("--timeout", "nan"), ("--timeout", "inf")],
)
def test_a_number_that_nobody_can_mean_is_refused(
    option: str, value: str, script: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A memory of 0 was divided by, and a defect opens the gate of ``exec``."""
    assert run_preflight(["check", option, value, script]) == 64
    said = capsys.readouterr().err
    assert option in said
    assert value in said
