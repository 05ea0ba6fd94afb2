"""Habits that make code hard to read, counted by package: no number may grow.

``habits.toml`` holds the numbers. After a change that lowers some, write them anew:
``python -m tests.house.test_habits``.
"""

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator

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


def habits(package: str) -> Iterator[tuple[str, str]]:
    """Yield each habit in a package, and where it is: file, line, name or words."""
    for path in sorted((ROOT / package).rglob("*.py")):
        for node in nodes(path):
            where = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 1)}"
            if isinstance(node, ast.arg) or (
                isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
            ):
                name = node.arg if isinstance(node, ast.arg) else node.id
                for habit, names in (("filler_variable", FILLERS), ("bare_noun", BARE_NOUNS)):
                    if name in names:
                        yield habit, f"{where} {name}"
            elif isinstance(node, DOCUMENTED):
                text = " ".join((ast.get_docstring(node) or "").split())
                for habit, pattern in IN_DOCSTRINGS.items():
                    for match in pattern.finditer(text):
                        yield habit, f"{where} {match[0].strip()!r}"
                if isinstance(node, ast.FunctionDef) and not text and _lines(node) > 6:
                    yield "no_docstring", f"{where} {node.name}"


def _lines(node: ast.FunctionDef) -> int:
    return (node.end_lineno or 0) - node.lineno + 1


@pytest.mark.parametrize("package", PACKAGES)
def test_no_habit_grows(package: str) -> None:
    """A habit that the file does not name for a package may not begin in that package."""
    allowed = tomllib.loads(NUMBERS.read_text()).get(package, {})
    places = list(habits(package))
    counts = Counter(habit for habit, _ in places)
    grown = [place for place in places if counts[place[0]] > allowed.get(place[0], 0)]
    assert grown == [], f"not more than {allowed}: see CONTRIBUTING.md, 'How the code speaks'"


if __name__ == "__main__":
    with NUMBERS.open("w") as out:
        for package in PACKAGES:
            out.write(f'["{package}"]\n')
            counts = sorted(Counter(habit for habit, _ in habits(package)).items())
            out.writelines(f"{habit} = {n}\n" for habit, n in counts)
            out.write("\n")
