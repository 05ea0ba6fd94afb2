"""Where the compound commands of a script begin and end: if, loops, case, braces, subshells."""

from __future__ import annotations

from typing import NamedTuple

from preflight.launches.shell_tokens import REDIRECTIONS, Token

# A range of tokens: from, and behind its last.
Range = tuple[int, int]
CASE_ENDS = (";;", ";&", ";;&")
_LOOPS = ("while", "until", "for", "select")


class Block(NamedTuple):
    """A compound command.

    kind: the word or bracket that it begins with. end: behind its last token. parts: of if each
    condition and what it leads to, in turn, and last what stands behind else; of while and until
    the condition and the body; of for and select the head and the body; of case the head, then
    each pattern and what it leads to; else the body.
    """

    kind: str
    end: int
    parts: tuple[Range, ...]


class _Open(NamedTuple):
    kind: str
    start: int
    marks: list[int]  # where its parts begin and end, in turn


def blocks(tokens: list[Token]) -> dict[int, Block]:
    """Return the compound commands by the token that each begins with; in one pass. Never raises.

    What never closes ends with the text.
    """
    found: dict[int, Block] = {}
    stack: list[_Open] = []
    begins = True  # a command may begin here
    named = False  # the name of a function stands here
    pattern = False  # a pattern of a case stands here
    fresh = False  # and nothing of it was seen yet
    headed = False  # the brackets of [[ ... ]] are none of a block's

    def close(last: int, behind: int) -> None:
        opened = stack.pop()
        marks = opened.marks + [last] * (len(opened.marks) % 2)
        parts = tuple(zip(marks[::2], marks[1::2], strict=True))
        found[opened.start] = Block(opened.kind, behind, parts)

    for index, token in enumerate(tokens):
        operator, bare = token.operator, token.bare
        top = stack[-1] if stack else None
        if pattern and top is not None and top.kind == "case":
            if operator in (")", "()"):
                top.marks.extend((index, index + 1))
                pattern, begins = False, True
            elif bare == "esac" and fresh:
                top.marks.pop()
                close(index, index + 1)
                pattern, begins = False, False
            fresh = fresh and operator == "\n"
            continue
        if headed:
            ends = operator == "\n" and not _continues(tokens, index)
            headed = bare != "]]" and not ends
            begins = False
            if headed or bare == "]]":
                continue
        if operator:
            if operator == "(":
                stack.append(_Open("(", index, [index + 1]))
            elif operator == ")" and top is not None and top.kind == "(":
                close(index, index + 1)
            elif operator in CASE_ENDS and top is not None and top.kind == "case":
                top.marks.extend((index, index + 1))
                pattern = fresh = True
            begins, named = operator not in REDIRECTIONS and operator != "((", False
            continue
        if named:
            begins, named = True, False
            continue
        if top is not None and top.kind == "case" and len(top.marks) == 1 and bare == "in":
            top.marks.extend((index, index + 1))
            pattern = fresh = True
            continue
        if not begins:
            continue
        begins = False
        if bare in ("if", "while", "until"):
            stack.append(_Open(bare, index, [index + 1]))
            begins = True
        elif bare in ("for", "select", "case"):
            stack.append(_Open(bare, index, [index + 1]))
        elif bare == "{":
            stack.append(_Open("{", index, [index + 1]))
            begins = True
        elif bare == "[[":
            headed = True
        elif bare in ("then", "elif", "else"):
            if top is not None and top.kind == "if":
                top.marks.extend((index, index + 1))
            begins = True
        elif bare == "do":
            if top is not None and top.kind in _LOOPS and len(top.marks) == 1:
                top.marks.extend((index, index + 1))
            begins = True
        elif bare in ("!", "coproc", "time"):
            begins = True
        elif bare == "function":
            named = True
        elif (
            (top is not None and (bare == "fi" and top.kind == "if"))
            or (top is not None and bare == "done" and top.kind in _LOOPS)
            or (top is not None and bare == "}" and top.kind == "{")
            or (top is not None and bare == "esac" and top.kind == "case")
        ):
            close(index, index + 1)
        elif token.word is not None and token.word.assignment is not None:
            begins = False
    while stack:
        close(len(tokens), len(tokens))
    return found


def definitions(tokens: list[Token], found: dict[int, Block]) -> dict[int, int]:
    """Return the functions of a text: where each begins, and the block that is its body."""
    bodies: dict[int, int] = {}
    for start in found:
        index = start - 1
        while index >= 0 and tokens[index].operator == "\n":
            index -= 1
        brackets = 1 if index >= 0 and tokens[index].operator == "()" else 0
        if index >= 1 and (tokens[index - 1].operator, tokens[index].operator) == ("(", ")"):
            brackets = 2
        name = index - brackets
        if name < 0 or tokens[name].word is None:
            continue
        if name and tokens[name - 1].bare == "function":
            bodies[name - 1] = start
        elif brackets:
            bodies[name] = start
    return bodies


def _continues(tokens: list[Token], index: int) -> bool:
    """Tell whether ``[[ ... ]]`` goes on behind the end of a line."""
    return index > 0 and tokens[index - 1].operator in ("&&", "||")
