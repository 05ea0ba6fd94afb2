"""Compound commands of a script: conditions, branches and loops, as far as they are known."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial, reduce

from preflight.launches.shell_arithmetic import names_set
from preflight.launches.shell_conditions import FALSE, OPEN, TRUE, Truth, either
from preflight.launches.shell_expansion import expand, number, value
from preflight.launches.shell_flow import (
    Arm,
    Part,
    ShellFlow,
    ShellFunction,
    arms_of,
    index_behind,
    is_command,
)
from preflight.launches.shell_state import Changes
from preflight.launches.shell_text import Node, ShellText
from preflight.launches.source import Origin, SourceNote, Word, brief

# Turns of all loops of a script that are followed.
MOST_TURNS = 2000
# What a loop waits with: its turns that start nothing else count a tenth, as they take no more.
_WAITS = frozenset(
    "curl date echo false grep nc nvidia-smi pgrep printf ps sleep true wget".split()
)
_NOT_COUNTED = "how many times it runs is not known"


class ShellBlocks(ShellFlow):
    """Follows ``if``, ``case`` and loops.

    Each ``on_`` method takes its tree; returns the truth.
    """

    def on_compound_statement(self, text: ShellText, tree: Node) -> Truth:
        """Go through ``{ a; b; }``, or work out ``((...))``.

        Return whether it succeeds.
        """
        if tree.children[0].type == "((":
            formula = text.text(tree)[2:-2]
            result = number(self.state, formula, text.origin(tree), assigns=True)
            return OPEN if result is None else Truth(bool(result))
        return self.run(text, tree.children)

    def on_subshell(self, text: ShellText, tree: Node) -> Truth:
        """Go through ``( ... )``, whose changes are lost behind it.

        Return whether it succeeds.
        """
        written = text.text(tree)
        if written.startswith("((") and written.endswith("))"):  # behind !, bash reads a sum
            result = number(self.state, written[2:-2], text.origin(tree), assigns=True)
            return Truth(bool(result)) if result is not None else self.not_read(text, tree)
        mark = self.state.mark()
        functions = dict(self.functions)
        ended = self.run(text, tree.children)
        self.state.back_to(mark)
        self.functions = functions
        if self.stop:
            self.stop = ""
            return OPEN
        return ended

    def on_test_command(self, text: ShellText, tree: Node) -> Truth:
        return self.conditions.command(text, tree)

    def on_function_definition(self, text: ShellText, tree: Node) -> Truth:
        name, body = tree.child_by_field_name("name"), tree.child_by_field_name("body")
        if name is not None and body is not None:
            self.functions[text.text(name)] = ShellFunction(text, body)
        return TRUE

    def test(self, text: ShellText, nodes: Sequence[Node]) -> Truth:
        """Go through a condition, in which ``set -e`` ends nothing.

        Return whether it holds.
        """
        self.tested += 1
        ended = self.run(text, nodes)
        self.tested -= 1
        return ended

    def on_if_statement(self, text: ShellText, tree: Node) -> Truth:
        """Go through an ``if``: the branch that is taken, or every branch that may be.

        Return whether it succeeds.
        """
        arms = arms_of(tree)
        skipped: list[Sequence[Node]] = []  # that a variable would lead to that nothing sets
        defaults = self.state.defaults
        for index, (condition, body) in enumerate(arms):
            truth = TRUE if condition is None else self.test(text, condition).undoubted()
            truth = TRUE if truth.expected and len(arms) == 1 else truth
            if self.stop:
                return truth
            if truth.value is None and self.sets_default(text, body, truth):
                return self.run(text, body)
            if truth.value is None:
                asked, other = arms[index + 1] if index + 2 == len(arms) else ((), ())
                if asked is None and self.sets_default(text, other, truth.negated()):
                    return self.run(text, other)
                note = self.condition_note(text, condition, truth, index + 1 < len(arms))
                unset = bool(truth.asks)
                return self.run_arms(text, arms[index:], note, skipped, unset=unset)
            if truth.value is False:
                skipped += [body] if truth.soft else []
                continue
            mark, count = self.state.mark(), len(self.commands)
            by_default = self.state.defaults > defaults
            ended = self.run(text, body)
            expected = self.stop in ("exit", "return") and (truth.soft or skipped)
            gave_up = self.gives_up() or (by_default and self.ends_by_default(text, tree, count))
            if not expected and not gave_up:
                return ended
            # Who asks so expects the variable to be set.
            rest = arms[index + 1 :]
            note = self.condition_note(text, condition or arms[0][0], truth, bool(rest))
            del self.commands[count:]
            self.go_on_after_end(mark, count, note, gave_up)
            return self.run_arms(text, rest, note, skipped, tests=True) if rest or skipped else OPEN
        return TRUE

    def condition_note(
        self, text: ShellText, condition: Sequence[Node] | None, truth: Truth, several: bool = False
    ) -> SourceNote:
        """Keep and return a note on a condition of an ``if`` or a loop whose outcome is not known.

        Args:
            truth: Of the condition.
            several: Another branch follows.
        """
        parts = [Part("", tree) for tree in condition or () if is_command(tree)]
        return self.undecided_note(text, parts, truth, several)

    def run_arms(
        self,
        text: ShellText,
        arms: Sequence[Arm],
        note: SourceNote,
        skipped: Sequence[Sequence[Node]],
        tests: bool = False,
        unset: bool = False,
    ) -> Truth:
        """Go through every branch that may run, each doubted by ``note``.

        Return OPEN.

        Args:
            tests: The condition of the first arm is tested; else its branch is read.
            skipped: Branches passed over before, which are read too if ``tests``.
            unset: The condition depends on a variable that nothing sets.
        """
        bodies = skipped if tests else ()
        outcomes = [self.branch(note, partial(self.run, text, body)) for body in bodies]
        for condition, body in arms:
            truth = OPEN
            if condition is not None and tests:
                truth = self.run_in_doubt(note, partial(self.test, text, condition)).undoubted()
                self.stop = ""
            if truth.value is not False:
                outcomes.append(self.branch(note, partial(self.run, text, body), unset))
            tests = True
            if condition is None or (truth.value and not truth.soft):
                break
        else:
            outcomes.append({})
        self.merge(outcomes, note)
        return OPEN

    def on_case_statement(self, text: ShellText, tree: Node) -> Truth:
        """Go through a ``case``: the arm that is taken, or every arm that may be.

        Return whether it succeeds.
        """
        head = tree.child_by_field_name("value")
        items = [child for child in tree.children if child.type == "case_item"]
        ends = [child.type for item in items for child in item.children[-1:]]
        if head is None or ";&" in ends or ";;&" in ends or any(i.has_error for i in items):
            return self.not_read(text, tree)
        origin = text.origin(tree)
        self.state.asking = True
        word = value(self.state, text.pieces(head), origin)
        self.state.asking = False
        outcomes: list[Changes | None] = []
        note: SourceNote | None = None
        mark, count = self.state.mark(), len(self.commands)
        for item in items:
            truth = self.arm_matches(text, item, word, origin)
            body = item.children[index_behind(item, ")") :]
            if truth.value is False:
                continue
            if note is None and truth.value and not truth.soft:
                ended = self.run(text, body)
                if word.by_default and self.ends_by_default(text, tree, count):
                    note = self.open_note(f"case {text.text(head)}", origin)
                    self.go_on_after_end(mark, count, note, True)
                return ended
            if note is None:
                note = self.open_note(f"case {text.text(head)}", origin, several=True)
            outcome = self.branch(note, partial(self.run, text, body), bool(word.unresolved))
            outcomes.append(outcome)
            # Who asks so, and ends if it is empty, expects the variable to be set.
            if truth.value is True and not (truth.soft and outcome is None):
                break
        else:
            outcomes.append({})
        if note is not None:
            self.merge(outcomes, note)
            return OPEN
        return TRUE

    def arm_matches(self, text: ShellText, item: Node, word: Word, origin: Origin) -> Truth:
        """Return whether a word matches one of the patterns of a ``case`` arm."""
        patterns: list[list[Node]] = [[]]
        for child in item.children[: index_behind(item, ")")]:
            if child.type == "|":
                patterns.append([])
            elif child.is_named:
                patterns[-1].append(child)
        written = (each.pieces for nodes in patterns for each in text.words(nodes))
        matched = (self.conditions.matches(word, pieces, origin).undoubted() for pieces in written)
        return reduce(either, matched, FALSE)

    def on_while_statement(self, text: ShellText, tree: Node) -> Truth:
        """Go through ``while`` or ``until``, turn by turn; once if the outcome of the condition is
        not known, or never changes, as in ``while true``.

        Return whether the loop succeeds.
        """
        *condition, body = [child for child in tree.children[1:] if child.type != "comment"]
        written = " ".join(text.text(child) for child in condition if child.is_named)
        constant = "$" not in written and "((" not in written and not written.startswith("read")
        while True:
            truth = self.test(text, condition).undoubted()
            if tree.children[0].type == "until":
                truth = truth.negated()
            if self.stop or truth.value is False:
                return TRUE
            if truth.value is None:
                note = self.condition_note(text, condition, truth)._replace(id="loop-not-counted")
                if "read" in written.split()[:2]:
                    note = note._replace(text=f"while {brief(written)}: {_NOT_COUNTED}; read once")
                    self.notes[-1] = note
                self.merge([self.branch(note, partial(self.run_turn, text, body)), {}], note)
                return OPEN
            if not self.count_turn(text, body):
                return OPEN
            self.run_turn(text, body)
            if self.loop_ends() or constant:
                return TRUE  # while true: what it starts ends before it is started again

    def run_turn(self, text: ShellText, body: Node) -> Truth:
        """Go through a loop's body once.

        Return whether the last command that is run succeeds.
        """
        before = len(self.commands)
        ended = self.run(text, body.children)
        programs = [command.words[0].text for command in self.commands[before:] if command.words]
        self.waited += all(name.rpartition("/")[2] in _WAITS for name in programs)
        if self.stop == "continue" and self.levels <= 1:
            self.stop = ""
        return ended

    def loop_ends(self) -> bool:
        """Return whether a loop ends after this turn; carry out a ``break`` that ends here."""
        if self.stop in ("break", "continue"):
            self.levels -= 1
            if self.levels <= 0:
                self.stop = ""
            return True
        return bool(self.stop)

    def count_turn(self, text: ShellText, body: Node) -> bool:
        """Count a turn of a loop, and return whether the turn is to be read.

        If not, as some loops never end, note that the other turns are not read.
        """
        self.turns += 1
        many_turns = self.turns - self.waited + self.waited // 10 > MOST_TURNS
        if not many_turns and self.state.budget.spend(body.end_byte - body.start_byte):
            return True
        why = "the script is longer than is followed"
        if many_turns:
            why = f"the loops up to here make more than {MOST_TURNS} turns"
        message = f"{why}: the other turns of this loop are not read"
        self.note("loop-not-counted", message, text.origin(body))
        return False

    def on_for_statement(self, text: ShellText, tree: Node) -> Truth:
        """Go through ``for NAME in WORDS``: once, NAME unknown, if the words are not known."""
        variable, body = tree.child_by_field_name("variable"), tree.child_by_field_name("body")
        if variable is None or body is None:
            return self.not_read(text, tree)
        name, origin = text.text(variable), text.origin(tree)
        if tree.children[0].type != "for":
            return self.not_read(text, tree, "select is not read")
        values = tree.children_by_field_name("value")
        known = listed = bool(values) or any(child.type == "in" for child in tree.children)
        turns = [word for each in text.words(values) for word in expand(self.state, each, origin)]
        if not listed:
            known = self.state.parameters is not None
            turns = list(self.state.parameters or ())
        doubts = {doubt.id for word in turns for doubt in word.doubts}
        if not known or "loop-not-counted" in doubts or any(word.several for word in turns):
            head = " ".join([name, *["in"] * bool(values), *map(text.text, values)])
            message = f"for {brief(head)}: {_NOT_COUNTED}; read once, with {name} unknown"
            self.state.lose(name, origin)
            self.run_once(text, body, message, origin)
            self.state.assign(name, Word(f"${name}", origin, (f"${name}",)))
            return OPEN
        for word in turns:
            if not self.count_turn(text, body):
                break
            self.state.assign(name, word)
            self.run_turn(text, body)
            if self.loop_ends():
                break
        return TRUE

    def on_c_style_for_statement(self, text: ShellText, tree: Node) -> Truth:
        """Go through ``for ((i = 0; i < 8; i++))``: once, with its variables unknown, if a sum is
        not known.
        """
        body, origin = tree.child_by_field_name("body"), text.origin(tree)
        head = re.match(r"for\s*\(\((.*?)\)\)\s*(?:;|do\b|\n|\{)", text.text(tree), re.DOTALL)
        if body is None or head is None:
            return self.not_read(text, tree)
        first, condition, step = (*head[1].split(";"), "", "")[:3]
        known = number(self.state, first or "0", origin, assigns=True) is not None
        while known:
            holds = number(self.state, condition or "1", origin, assigns=True)
            known = holds is not None
            if not holds or not self.count_turn(text, body):
                break
            self.run_turn(text, body)
            if self.loop_ends():
                break
            known = number(self.state, step or "0", origin, assigns=True) is not None
        if not known:
            for name, element in names_set(f"{first}, {condition}, {step}").items():
                self.state.lose(name, origin, element)
            message = f"for (({brief(head[1])})): {_NOT_COUNTED}; read once"
            self.run_once(text, body, message, origin)
        return TRUE

    def run_once(self, text: ShellText, body: Node, message: str, origin: Origin) -> None:
        """Go through a loop's body once, in doubt.

        Args:
            message: The reason, for the note.
        """
        note = SourceNote("loop-not-counted", message, origin)
        self.merge([self.branch(note, partial(self.run_turn, text, body)), {}], note)
