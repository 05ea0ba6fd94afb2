"""Which checks are made and what of them counts: the same options for every command that judges."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from preflight.cli.main import run
from preflight.command_inputs.launch_words import Chosen
from preflight.fleet.over_ssh import check_arguments
from tests.builders.synthetic import build_host, plain_host

Out = pytest.CaptureFixture[str]

DEMO = ("--root", "demo:h800", "--timeout", "600")
HOLDS = '[[waiver]]\ncheck = "memlock.limit"\nreason = "lifted by the unit"\nuntil = 2999-12-31\n'
OVER = '[[waiver]]\ncheck = "hugetlb.shortage"\nreason = "at the next boot"\nuntil = 2020-01-31\n'
UNNEEDED = '[[waiver]]\ncheck = "pci.acs"\nreason = "the firmware\'s"\n'


@pytest.fixture
def waivers(tmp_path: Path) -> str:
    path = tmp_path / "waivers.toml"
    path.write_text(HOLDS + OVER + UNNEEDED)
    return str(path)


def test_a_waiver_is_shown_and_said_to_be_over_or_not_needed(waivers: str, capsys: Out) -> None:
    assert run(["check", *DEMO, "--waivers", waivers, "--json"]) == 2
    found = json.loads(capsys.readouterr().out)
    by = {(each["check"], each["status"]): each for each in found["findings"]}
    assert by["memlock.limit", "fail"]["ignored"] == "lifted by the unit (until 2999-12-31)"
    assert by["hugetlb.shortage", "fail"]["ignored"] is None
    assert by["launch.waiver", "warn"]["subjects"][0]["name"] == "hugetlb.shortage"
    assert found["answer"]["unused_ignores"] == ["pci.acs"]
    run(["check", *DEMO, "--waivers", waivers])
    text = capsys.readouterr().out
    assert "lifted by the unit" in text
    assert "launch.waiver: hugetlb.shortage" in text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[[waiver]]\ncheck = 1", "give its check, and a reason"),
        ('[[waiver]]\ncheck = "memlock.limit"\nreason = " "', "give its check, and a reason"),
        (HOLDS + 'till = "x"', "till: it has check, reason and until alone"),
        (HOLDS.replace("2999-12-31", '"soon"'), "write a date without quotes"),
        ("", "write a table"),
        ("waivers = []", "write a table"),
        ("[[waiver", "waivers.toml"),
        (HOLDS.replace("memlock.limit", "memlock.limt"), "did you mean memlock.limit"),
        (OVER.replace("hugetlb.shortage", "hugetlb.shortag"), "did you mean hugetlb.shortage"),
        (HOLDS.replace("memlock.limit", "memlock.limit=x"), "no check has this id"),
        (HOLDS + HOLDS, "memlock.limit: it is waived twice: give one reason"),
    ],
)
def test_a_file_nobody_means_is_refused(text: str, said: str, tmp_path: Path, capsys: Out) -> None:
    path = tmp_path / "waivers.toml"
    path.write_text(text)
    assert run(["check", "--waivers", str(path)]) == 64
    err = capsys.readouterr().err
    assert said in " ".join(err.split())
    assert "waivers.toml" in err


@pytest.mark.slow
def test_fit_leaves_out_what_is_ignored_and_shows_it(waivers: str, capsys: Out) -> None:
    """Lifted memlock is what makes the launch start at all on this host."""
    words = ["fit", "--goal", "l2", *DEMO]  # the quickest
    assert run(words) == 1
    assert run([*words, "--ignore", "memlock.limit=lifted by the unit"]) == 0
    assert "ignored: memlock.limit: lifted by the unit" in capsys.readouterr().out
    assert run([*words, "--skip", "memlock.limit"]) == 0
    assert run([*words, "--waivers", waivers]) == 0
    said = capsys.readouterr().out
    assert "ignored: memlock.limit: lifted by the unit (until 2999-12-31)" in said
    assert "launch.waiver, hugetlb.shortage: a waiver until 2020-01-31" in said


def test_what_is_chosen_goes_to_nodes_what_is_over_is_said(waivers: str, capsys: Out) -> None:
    chosen = Chosen(("memlock.*", "hugetlb.*", "pci.*"), ("memlock.inert*",), (), waivers)
    words = check_arguments(chosen, 10)
    assert words[3:] == (
        "--only=memlock.*",
        "--only=hugetlb.*",
        "--only=pci.*",
        "--skip=memlock.inert*",
        "--ignore=memlock.limit=lifted by the unit (until 2999-12-31)",
        "--ignore=pci.acs=the firmware's",
    )
    assert "hugetlb.shortage: over since 2020-01-31" in capsys.readouterr().err


def test_the_gate_refuses_a_check_that_there_is_not(capsys: Out) -> None:
    """Before anything is started: a typing error must not widen what passes."""
    server = ["--", "python3", "-m", "sglang.launch_server"]
    assert run(["exec", "--skip", "memlock.limt", *server]) == 64
    assert "did you mean memlock.limit" in capsys.readouterr().err


def test_known_problems_alone_are_judged(capsys: Out) -> None:
    """That none of them holds is a pass, not nothing."""
    assert run(["check", *DEMO, "--only", "advisory.*", "-v"]) == 0
    assert "launch.advisories" in capsys.readouterr().out


@pytest.mark.slow
def test_where_nothing_fits_the_next_step_is_named(tmp_path: Path, capsys: Out) -> None:
    """A cgroup of the host, which somebody else has set, stops what no setting of ours mends."""
    limited = replace(plain_host(), cgroup={"hugetlb.2MB.rsvd.max": "0"})
    client = [
        "MC_STORE_USE_HUGEPAGE=1",
        "mooncake_client",
        "--global_segment_size=4GB",
        "--protocol=tcp",
    ]
    assert run(["fit", "--root", str(build_host(tmp_path, limited)), "--", *client]) == 2
    said = " ".join(capsys.readouterr().out.split())
    assert "run this command again with --ignore hugetlb.cgroup-limit=mended" in said
