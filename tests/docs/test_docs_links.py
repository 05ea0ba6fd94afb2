"""What the pages point at is there, and the commands that they show are ones that are taken."""

from __future__ import annotations

import re
import shlex

import click
import pytest

from tests.cli.commands import PROGRAMS, accept
from tests.paths import ROOT

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
NAMES = "|".join(PROGRAMS)


def anchor(heading: str) -> str:
    """As GitHub makes it of a heading."""
    plain = re.sub(r"[`*]", "", heading).lower()
    return re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")


def test_every_link_leads_to_a_file_and_a_heading_of_it() -> None:
    lost = []
    for page in PAGES:
        text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if target.startswith("http"):
                continue
            path, _, heading = target.partition("#")
            place = page.parent / path if path else page
            headings = []
            if heading and place.is_file():
                headings = re.findall(r"^#+ (.*)$", place.read_text(), re.MULTILINE)
            if not place.exists() or (heading and heading not in map(anchor, headings)):
                lost.append(f"{page.name}: {target}")
    assert lost == []


def test_every_path_of_this_project_that_is_named_is_there() -> None:
    lost = []
    for page in PAGES:
        for path in re.findall(
            r"`((?:preflight|checks|docs|tests|benchmarks)/[\w./*-]+)`", page.read_text()
        ):
            if not list(ROOT.glob(path)):
                lost.append(f"{page.name}: {path}")
    assert lost == []


def shown() -> list[tuple[str, str]]:
    """The command lines of the pages, one to a line, without what a shell does around them."""
    found = []
    for page in PAGES:
        text = page.read_text().replace("\\\n", " ")
        lines = re.findall(rf"^(?:    |\$ )?(?:sudo )?((?:{NAMES}) .*)$", text, re.MULTILINE)
        lines += re.findall(rf"`(?:sudo )?((?:{NAMES}) [^`]*)`", text)
        for line in lines:
            own = re.split(r"\s#\s| [|<>] ", line)[0]
            placeholder = re.search(r"\[--|(?:^| )[A-Z]+(?: |$)", own)
            is_output = own.split()[1].endswith(":")  # what plan says beside its answer
            if own.count("'") % 2 == 0 and placeholder is None and not is_output:
                found.append((page.name, own.strip()))
    return found


def test_every_command_that_is_shown_is_taken() -> None:
    """By the parser: nothing is run. A group alone is a name, and so is one with too little."""
    refused = []
    assert len(shown()) > 50
    for page, line in shown():
        name, *words = shlex.split(line)
        try:
            accept(PROGRAMS[name], words)
        except click.exceptions.NoArgsIsHelpError:
            pass
        except click.MissingParameter as missing:
            if words[-1].startswith("-"):
                refused.append(f"{page}: {line}: {missing.format_message()}")
        except click.ClickException as error:
            refused.append(f"{page}: {line}: {error.format_message()}")
    assert refused == []


def test_what_is_shown_can_be_typed_with_a_file_of_the_clone_or_ones_own() -> None:
    """The program refuses dots of a launch. What stands behind $ runs in ``test_blocks``."""
    assert [line for _, line in shown() if "..." in line or "…" in line] == []
    scripts = {word for _, line in shown() for word in line.split() if word.endswith(".sh")}
    # Names that docs/README.md and the text beside them call the reader's own.
    own = {"launch.sh", "launch-new.sh", "serve.sh", "deploy/launch.sh"}
    assert [name for name in scripts - own if not (ROOT / name).is_file()] == []
    hosts = {host for _, line in shown() for host in re.findall(r"--(?:root|host) (\S+)", line)}
    own = {"demo:h800", "/host", "host.toml"}
    assert {host for host in hosts if not host.endswith(".tar.gz")} <= own


@pytest.mark.parametrize("line", ["check --no-such-option", "no-such-command", "fleet nothing"])
def test_what_is_not_taken_is_refused(line: str) -> None:
    with pytest.raises(click.ClickException):
        accept(PROGRAMS["mooncake-preflight"], line.split())
