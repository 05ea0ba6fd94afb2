"""Habits that make code hard to read, counted by package: no number may grow.

``habits.toml`` holds the numbers. After a change that lowers some, write them anew:
``python -m tests.house.test_habits``.
"""

import ast
import re
import sys
from collections import Counter

import pytest

from tests.house.test_layers import nodes
from tests.paths import ROOT

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

NUMBERS = ROOT / "tests/house/habits.toml"
IN_DOCSTRINGS = {
    "return_what": re.compile(r"\breturns? what\b", re.IGNORECASE),
    "where_for_if": re.compile(
        r"""(\b(None|Unknown|True|False|Error|unknown|0|one|none|that)|"|[a-z]\)?[,;]) where """
    ),
    "none_for_none": re.compile(
        r"\bnone (for|where) (none|there is none)|for what is no", re.IGNORECASE
    ),
    "pronoun": re.compile(r"\b(of it|of them|there|its own|thereof)\b(?! (is|are|was|were)\b)"),
}
FILLERS = {"found", "one", "said", "own", "given", "told", "held"}
BARE_NOUNS = {"node", "pool", "kind", "words"}
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef)
PACKAGES = sorted(
    folder.relative_to(ROOT).as_posix()
    for top in ("checks", "preflight")
    for folder in (ROOT / top).iterdir()
    if (folder / "__init__.py").exists()
)


def habits(package: str) -> Counter[str]:
    """Count each habit in one package."""
    counts: Counter[str] = Counter()
    for node in (node for path in (ROOT / package).rglob("*.py") for node in nodes(path)):
        if isinstance(node, ast.arg) or (
            isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        ):
            name = node.arg if isinstance(node, ast.arg) else node.id
            counts["filler_variable"] += name in FILLERS
            counts["bare_noun"] += name in BARE_NOUNS
        elif isinstance(node, DOCUMENTED):
            text = " ".join((ast.get_docstring(node) or "").split())
            for habit, pattern in IN_DOCSTRINGS.items():
                counts[habit] += len(pattern.findall(text))
            if isinstance(node, ast.FunctionDef) and not text:
                counts["no_docstring"] += (node.end_lineno or 0) - node.lineno >= 6
    return +counts


@pytest.mark.parametrize("package", PACKAGES)
def test_no_habit_grows(package: str) -> None:
    """A habit that the file does not name for a package may not begin in that package."""
    allowed = tomllib.loads(NUMBERS.read_text()).get(package, {})
    grown = {habit: n for habit, n in habits(package).items() if n > allowed.get(habit, 0)}
    assert grown == {}, f"not more than {allowed}: see CONTRIBUTING.md, 'How the code speaks'"


if __name__ == "__main__":
    with NUMBERS.open("w") as out:
        for package in PACKAGES:
            out.write(f'["{package}"]\n')
            out.writelines(f"{habit} = {n}\n" for habit, n in sorted(habits(package).items()))
            out.write("\n")
