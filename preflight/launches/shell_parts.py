"""The tree of a script as lists of commands: the grammar nests lists, pipelines and redirections.

Each function returns the commands of a node in the order in which bash runs them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from preflight.launches.shell_text import Node, ShellText, WrittenWord

_REDIRECTIONS = ("file_redirect", "heredoc_redirect", "herestring_redirect")
# The kinds of nodes that are redirections within one that announces a heredoc.
_HEREDOC_PARTS = ("heredoc_start", "heredoc_body", "heredoc_end", "file_descriptor")
# What the tree has for a command of its own.
STATEMENTS = frozenset(
    "case_statement command compound_statement c_style_for_statement declaration_command "
    "for_statement function_definition if_statement list negated_command pipeline "
    "redirected_statement subshell test_command unset_command variable_assignment "
    "variable_assignments while_statement".split()
)
WRITES = (">", ">|", ">>", "&>", "&>>")
# A condition of an ``if``, None for else, and what it leads to.
Arm = tuple["Sequence[Node] | None", "Sequence[Node]"]


class ShellFunction(NamedTuple):
    """A function's body, in the text that defines it."""

    text: ShellText
    body: Node


class Redirection(NamedTuple):
    """Where a command reads or writes. extra: words of the command behind ``target``."""

    operator: str
    node: Node
    target: WrittenWord | None = None
    extra: tuple[Node, ...] = ()


class Part(NamedTuple):
    """One command of a list or pipeline. operator: in front of it, "" for the first."""

    operator: str
    node: Node | None
    redirections: tuple[Redirection, ...] = ()


def parts_of(text: ShellText, node: Node, operator: str = "") -> list[Part]:
    """Return the commands of a list or pipeline in their order: the tree nests them otherwise."""
    if node.type in ("list", "pipeline") and not node.has_error:
        parts: list[Part] = []
        for child in node.children:
            if child.is_named and child.type != "comment":
                parts += parts_of(text, child, operator)
                operator = ""
            elif child.type in ("&&", "||", "|", "|&"):
                operator = child.type
        return parts
    # The parser may give up within the redirections.
    broken = any(
        c.type == "ERROR" or (c.type in _REDIRECTIONS and c.has_error) for c in node.children
    )
    if node.type != "redirected_statement" or broken:
        return [Part(operator, node)]
    outer: list[Redirection] = []
    behind: list[Part] = []
    body: Node | None = None
    for child in node.children:
        if child.type in _REDIRECTIONS:
            here, more = _redirections(text, child)
            outer, behind = [*outer, *here], [*behind, *more]
        elif child.type != "comment":
            body = child
    inner = [Part(operator, None)] if body is None else parts_of(text, body, operator)
    last = inner[-1]
    redirections = (*last.redirections, *outer)
    inner[-1] = last._replace(node=node if body is None else last.node, redirections=redirections)
    return [*inner, *behind]


def _redirections(text: ShellText, node: Node) -> tuple[list[Redirection], list[Part]]:
    """Return the redirections of a node, and the commands that the tree has within a heredoc's."""
    operators = [c.type for c in node.children if not c.is_named]
    operator = operators[0] if operators else ""
    if node.type == "file_redirect":
        number_of = next((c for c in node.children if c.type == "file_descriptor"), None)
        if number_of is not None and text.text(number_of) not in ("0", "1"):
            operator = f"{text.text(number_of)}{operator}"  # errors, or a file of its own
        targets = [child for child in node.children if child.is_named and child != number_of]
        end = next((i for i in range(1, len(targets)) if text.apart(*targets[i - 1 : i + 1])), None)
        word = text.words(targets[:end])[0] if targets else None
        extra = tuple(targets[end:]) if end is not None else ()
        return [Redirection(operator, node, word, extra)], []
    if node.type != "heredoc_redirect":
        return [Redirection(operator, node)], []
    others = (*_HEREDOC_PARTS, *_REDIRECTIONS, "pipeline", "list", "command", "comment")
    joined = any(child.type in ("&&", "||") for child in node.children)
    extra = () if joined else tuple(c for c in node.children if c.is_named and c.type not in others)
    redirections, behind = [Redirection(operator, node, None, extra)], []
    joint = ""
    for child in node.children:
        if child.type in ("&&", "||", "|"):
            joint = child.type
        elif child.type == "file_redirect":
            redirections += _redirections(text, child)[0]
        elif child.is_named and joint:
            behind += parts_of(text, child, joint)
        elif child.type == "pipeline":
            behind += parts_of(text, child, "")
    return redirections, behind


def redirections_of(text: ShellText, node: Node) -> list[Redirection]:
    """Return the redirections that a node within a command stands for, such as here-strings."""
    return _redirections(text, node)[0]


def says(node: Node) -> bool:
    """Return whether a node is a command: no comment and no separator."""
    separates = node.type in ("comment", ";", "&", ";;", ";&", ";;&", "\n", "{", "}", "(", ")")
    keyword = node.type in ("do", "done", "then", "fi", "else")
    return not (separates or keyword)


def breaks(node: Node, behind: Node) -> bool:
    """Return whether one of two nodes does not parse, on a line of the other."""
    return "ERROR" in (node.type, behind.type) and node.end_point[0] == behind.start_point[0]


def arms_of(node: Node) -> list[Arm]:
    """Return each condition of an ``if`` and what it leads to; the condition of else is None."""
    clauses = [c for c in node.children if c.type in ("elif_clause", "else_clause")]
    children_of_if = [c for c in node.children if c not in clauses]
    then = behind(node, "then", children_of_if)
    arms: list[Arm] = [(children_of_if[1 : then - 1], children_of_if[then:])]
    for clause in clauses:
        children = clause.children
        if clause.type == "else_clause":
            arms.append((None, children[1:]))
        else:
            then = behind(clause, "then")
            arms.append((children[1 : then - 1], children[then:]))
    return arms


def behind(node: Node, kind: str, children: Sequence[Node] | None = None) -> int:
    """Return the place behind the first child of a kind."""
    nodes = node.children if children is None else children
    return next((i for i, child in enumerate(nodes) if child.type == kind), -1) + 1
