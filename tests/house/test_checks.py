"""What whoever writes a check is told of the test that it has to have."""

import re

from preflight.verdict.catalogue import catalogue
from tests.paths import ROOT


def test_every_check_has_a_test() -> None:
    """That names it: one that nothing tests may say anything."""
    texts = [
        path.read_text()
        for path in (ROOT / "tests").rglob("*.py")
        if "data" not in path.parts and path.name != "test_checks.py"
    ]
    named = set(re.findall(r"[a-z0-9-]+\.[a-z0-9-]+", "\n".join(texts)))
    every = catalogue()
    checks = {problem.id for problem in (*every.host, *every.launch, *every.fleet)}
    without = sorted(checks - named)
    assert without == [], "write a test that names it in tests/checks, or beside its topic's tests"
