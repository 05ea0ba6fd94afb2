"""Rules about a command line that is not known to its end: words that the source leaves open."""

from __future__ import annotations

from collections.abc import Iterator

from preflight.launches.source import Word
from preflight.processes.processes import Kind, LaunchProcess
from preflight.rules.rules import RuleSet, Seen, Severity

RULES = RuleSet()
_BASH = "bash: a variable that is not set makes no word; seen by running scripts"
# The arguments that a script itself was given.
OWN_ARGUMENTS = ("$@", "$*", "${@}", "${*}")
_READ = (Kind.SGLANG, Kind.STORE_SERVICE, Kind.CLIENT)


@RULES.launch(
    "arguments-not-set",
    Severity.WARN,
    "a word among a process's arguments that comes from a variable which the launch does not set",
    "it was taken as nothing, as a shell takes it; where the caller's environment sets it, the "
    "process gets arguments that were not judged",
    "give it as the caller has it: NAME='--flag value' in front of this command, or --env-file",
    _BASH,
)
def arguments_not_set(processes: tuple[LaunchProcess, ...]) -> Iterator[Seen]:
    for process, word in open_words(processes):
        if not _is_own(word):
            names = ", ".join(dict.fromkeys(word.unresolved))
            yield Seen(f"{process.kind.value}: {word.text}: {names} is not set", word.origin)


@RULES.launch(
    "script-arguments",
    Severity.NOTE,
    "a process that is given the arguments of the script itself",
    "none were taken: a script that is read here is given none",
    'write the arguments into the script in place of "$@"',
    _BASH,
)
def script_arguments(processes: tuple[LaunchProcess, ...]) -> Iterator[Seen]:
    for process, word in open_words(processes):
        if _is_own(word):
            yield Seen(f"{process.kind.value}: {word.text} passes them on", word.origin)


def _is_own(word: Word) -> bool:
    return all(name in OWN_ARGUMENTS for name in word.unresolved)


def open_words(
    processes: tuple[LaunchProcess, ...],
) -> Iterator[tuple[LaunchProcess, Word]]:
    """Words that stand for themselves, no flag's value, and whose text is not known."""
    for process in processes:
        if process.kind not in _READ:
            continue
        words = process.server.arguments.unrecognized if process.server else process.arguments
        value_of = ""
        for word in words:
            is_flag = word.text.startswith("-")
            is_open = word.unresolved and (not is_flag or "$" in word.text.partition("=")[0])
            # What follows a flag of a store's own process is its value.
            if is_open and (process.server or not value_of):
                yield process, word
            value_of = word.text if is_flag and "=" not in word.text else ""
