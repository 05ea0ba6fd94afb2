"""The commands are one family: the same sections, options and examples in all of them."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest

from preflight.cli.main import run
from tests.cli.commands import EVERY, PROGRAMS, accept
from tests.cli.commands import LEAVES as ALL
from tests.paths import ROOT

LAUNCH = (
    "nic_nodes rank_nodes mooncake_version sglang_version model_config gpu_bytes "
    "host_group env_files"
).split()
CHOICE = "only skip ignore waivers".split()


def help_of(path: str, width: int = 100) -> str:
    command = EVERY[path]
    return command.get_help(click.Context(command, info_name=path, terminal_width=width))


def names(command: click.Command) -> set[str]:
    return {parameter.name or "" for parameter in command.params}


@pytest.mark.parametrize("path", EVERY)
def test_every_command_has_examples_that_it_takes(path: str) -> None:
    text = help_of(path)
    assert "\n  Examples:\n" in text
    lines = text.partition("Examples:\n")[2].replace("\\\n", "").strip().splitlines()
    for line in lines:
        own = line.partition(" | ")[0].partition(" > ")[0].partition(" >> ")[0]
        # The program refuses both of a launch.
        assert "..." not in line
        assert "…" not in line
        words = shlex.split(own)
        at = next((at for at, word in enumerate(words) if word in PROGRAMS), None)
        if at is not None:
            accept(PROGRAMS[words[at]], words[at + 1 :])
    assert path.split()[0] in "\n".join(lines)


@pytest.mark.parametrize(
    "path", [path for path, command in ALL.items() if "launch" in names(command)]
)
def test_what_is_said_of_a_launch_has_a_section_of_its_own(path: str) -> None:
    own, section, rest = help_of(path).partition("About the launch (docs/launch.md):\n")
    assert section
    of_launch = [one for one in ALL[path].params if one.name in LAUNCH]
    assert len(of_launch) >= 6  # one knows the release by itself
    for one in of_launch:
        assert one.opts[0] in rest
        assert f"\n  {one.opts[0]} " not in own


def test_the_page_of_launches_has_each_of_these_options() -> None:
    text = (ROOT / "docs" / "launch.md").read_text()
    table = text.partition("## Options about a launch")[2].partition("\n## ")[0]
    options = {o.name: o.opts[0] for o in ALL["mooncake-preflight check"].params}
    assert {options[name] for name in LAUNCH if f"| `{options[name]} " not in table} == set()


@pytest.mark.parametrize("path", ["check", "exec", "fit", "fleet check"])
def test_what_judges_takes_the_same_choice_of_checks(path: str) -> None:
    assert set(CHOICE) <= names(ALL[f"mooncake-preflight {path}"])
    assert "Which checks:\n" in help_of(f"mooncake-preflight {path}")


@pytest.mark.parametrize(
    "words", [[*path.split()[1:], "--help"] for path in EVERY if path not in ALL], ids=" ".join
)
@pytest.mark.parametrize("columns", ["60", "80", "200"])
def test_no_summary_is_cut(
    words: list[str],
    columns: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    assert run(words) == 0
    # Examples are to be copied: no line of them is broken.
    lines = capsys.readouterr().out.partition("  Examples:\n")[0].splitlines()
    assert [line for line in lines if line.endswith("...") and "[ARGS]" not in line] == []
    assert max(map(len, lines)) <= int(columns)


@pytest.mark.parametrize("path", ["", *(path for path in EVERY if path.count(" "))])
def test_help_of_a_command_is_its_help(path: str, capsys: pytest.CaptureFixture[str]) -> None:
    words = path.split()[1:]
    assert run([*words, "--help"]) == 0
    said = capsys.readouterr().out
    assert run(["help", *words]) == 0
    assert capsys.readouterr().out == said
    assert run(["help", *words, "no-such"]) in (0, 64)  # a launch, or no command


# Completion -------------------------------------------------------------------------------------


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_is_told_of_both_commands(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["completion", shell]) == 0
    script = capsys.readouterr().out
    for name in PROGRAMS:
        assert f"_{name.replace('-', '_').upper()}_COMPLETE={shell}_complete" in script
        assert name in script


@pytest.fixture
def on_path(tmp_path: Path) -> Path:
    """A folder with both commands, a launch and a log."""
    starts = dict(zip(PROGRAMS, ("preflight", "preflight.cli.sizing"), strict=True))
    for name, module in starts.items():
        start = f'PYTHONPATH={ROOT} exec {sys.executable} -m {module} "$@"'
        (tmp_path / name).write_text(f"#!/bin/sh\n{start}\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "launch.sh").touch()
    return tmp_path


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "wanted"),
    [
        ("mooncake-preflight explain memlock.l", "memlock.limit"),
        ("mooncake-preflight check --skip rdma.gid", "rdma.gid"),
        ("mooncake-preflight fle", "fleet"),
        ("mooncake-preflight fleet me", "merge"),
        ("mooncake-preflight check --waiv", "--waivers"),
        ("mooncake-hicache-sizing --global-seg", "--global-segment-size"),
        ("mooncake-preflight check laun", "launch.sh"),
        ("mooncake-hicache-sizing laun", "launch.sh"),
        ("mooncake-preflight explain laun", "launch.sh"),
    ],
)
def test_bash_completes(line: str, wanted: str, on_path: Path) -> None:
    """By bash itself: the script is sourced, and the function asked as the Tab key asks it."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash")
    words = line.split()
    function = f"_{words[0].replace('-', '_')}_completion"
    script = f"""
export PATH={shlex.quote(str(on_path))}:$PATH
cd {shlex.quote(str(on_path))}
compopt() {{ asked=$2; }}
source <(mooncake-preflight completion bash)
COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; COMPREPLY=()
{function} {words[0]}
printf '%s\\n' "${{COMPREPLY[@]}}"
[ "$asked" = default ] && compgen -f {words[-1]}
true
"""
    said = subprocess.run([bash, "-c", script], capture_output=True, text=True, timeout=60)
    assert wanted in said.stdout.split(), said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["chek"], "did you mean check?"),
        (["fleet", "chck"], "did you mean check?"),
        (["launch.sh"], "is a file, not a command: give it to check or read"),
        (["zzz"], "No such command 'zzz'."),
        (["check", "gone.sh"], "'gone.sh' does not exist: give the path of a script or manifest"),
        (["check", "--", "./gone.sh", "--tp", "8"], "'./gone.sh' does not exist"),
        (["check", "lunch.sh"], "'lunch.sh' does not exist: did you mean launch.sh?"),
        (["fit", "./launch.s"], "'./launch.s' does not exist: did you mean ./launch.sh?"),
        (["check", "--env-file", "x", "--", "lanch.sh", "8"], "did you mean launch.sh?"),
        (["check", "python3", "-m", "sglang"], "stand behind --: mooncake-preflight check -- COMM"),
    ],
)
def test_a_command_that_is_none_is_refused_with_the_right_one(
    words: list[str],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "launch.sh").write_text("mooncake_master\n")
    assert run(words) == 64
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("path", ALL)
def test_no_section_of_a_help_has_one_option_of_another_command(path: str) -> None:
    titles = re.findall(r"(?m)^(\S.*):\n((?:[ ].*\n?)+)", help_of(path))
    for title, body in titles:
        options = re.findall(r"(?m)^ {2}-", body)
        assert title == "Options" or len(options) != 1, title
