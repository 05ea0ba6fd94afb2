"""tools/mutate_code.py: each mutant is one change, and one that a test notices is killed."""

from __future__ import annotations

import ast
from pathlib import Path

import mutate_code
import pytest

CODE = """\
LIMIT = 0.9
def f(a, b=0):
    return not a or (
        a < b
        and a is not None) or a not in (True,)
"""


def test_a_mutant_is_one_change(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(mutate_code, "ROOT", tmp_path)
    (tmp_path / "a.py").write_text(CODE)
    mutants = list(mutate_code.mutants_of("a.py"))
    assert sorted((mutant.line, mutant.old.strip(), mutant.new) for mutant in mutants) == [
        (1, "0.9", "0.918"),
        (2, "0", "1"),
        (3, "not", ""),
        (3, "or", "and"),
        (4, "<", "<="),
        (5, "True", "False"),
        (5, "and", "or"),
        (5, "is not", "is"),
        (5, "not in", "in"),
    ]
    assert [mutant.name for mutant in mutants if mutant.line == 1] == ["LIMIT"]
    for mutant in mutants:
        assert ast.dump(ast.parse(mutant.source())) != ast.dump(ast.parse(CODE))


def test_the_same_seed_draws_the_same(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(mutate_code, "ROOT", tmp_path)
    monkeypatch.setattr(mutate_code, "JUDGES", ("*.py",))
    (tmp_path / "a.py").write_text(CODE)
    first, again, other = (mutate_code.drawn(5, seed) for seed in (1, 1, 2))
    assert first == again != other
