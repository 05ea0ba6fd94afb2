"""SGLang's own functions, out of a release's sources, with stand-ins for what they use."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any


class _Plain(ast.NodeTransformer):
    """A function without its imports and decorators: the test gives what they name."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.decorator_list = []
        self.generic_visit(node)
        return node

    def visit_Import(self, _: ast.Import) -> ast.AST:
        return ast.Pass()

    def visit_ImportFrom(self, _: ast.ImportFrom) -> ast.AST:
        return ast.Pass()


def functions(file: Path, names: Iterable[str], **uses: Any) -> dict[str, Callable[..., Any]]:
    """Those functions and methods of a file, by name. uses: what they find under these names."""
    body = ast.parse(file.read_text()).body
    methods = [each for outer in body if isinstance(outer, ast.ClassDef) for each in outer.body]
    wanted = {
        each.name: _Plain().visit(each)
        for each in (*methods, *body)
        if isinstance(each, ast.FunctionDef) and each.name in names
    }
    module = ast.fix_missing_locations(ast.Module([*wanted.values()], []))
    scope = dict(uses)
    exec(compile(module, str(file), "exec", annotations.compiler_flag), scope)
    return {name: scope[name] for name in wanted}
