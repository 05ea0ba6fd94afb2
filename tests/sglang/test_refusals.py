"""What each row of refused values quotes stands in the sources of its releases, and of no other."""

from __future__ import annotations

import re
import sys

import pytest

from checks.releases.sglang import parse_version
from preflight.programs.sglang_refusals import refusal_rows
from tests.paths import ROOT

# The first and the last release of most rows, and the ones beside them.
VERSIONS = ("0.5.2", "0.5.9", "0.5.14", "0.5.15", "0.5.18", "0.5.19", "0.5.21", "0.5.22", "0.5.23")
NAME = re.compile(r"\{[^}]*\}")


@pytest.mark.sglang
@pytest.mark.parametrize("version", VERSIONS)
def test_messages_stand_in_the_sources(version: str) -> None:
    sys.path.insert(0, str(ROOT / "tools"))
    from sglang_wheels import unpacked

    folder = unpacked(version) / "sglang" / "srt"
    files = [folder / "server_args.py", *folder.glob("arg_groups/*.py")]
    files += folder.glob("mem_cache/*host*.py")
    joined = "".join(re.sub(r'"\s+f?"', "", file.read_text()) for file in files)
    source = NAME.sub("{}", joined)
    for row in refusal_rows():
        kind, quoted, says = row.says.partition("Error: ")
        if not quoted or kind.startswith("torch") or " == 0, with" in says:
            continue  # of no words of its own
        since, until = row.since or version, row.until or version
        holds = parse_version(since) <= parse_version(version) <= parse_version(until)
        assert (NAME.sub("{}", says) in source) == holds, says
