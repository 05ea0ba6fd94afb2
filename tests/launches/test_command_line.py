"""A launch behind -- is read from its words, whatever stands in front of the program."""

from __future__ import annotations

from preflight.launches.shell_script import read_argv
from preflight.launches.source import Origin


def test_words_stay_as_they_are() -> None:
    (command,) = read_argv(["python3", "-m", "a", "$X y", ""], {"PATH": "/bin"}).commands
    assert [word.text for word in command.words] == ["python3", "-m", "a", "$X y", ""]
    assert {word.origin for word in command.words} == {Origin("command line")}
    assert not any(word.unresolved for word in command.words)
    assert command.environment["PATH"].origin == Origin("environment")


def test_assignments_in_front() -> None:
    (command,) = read_argv(["A=1 2", "B=", "x"], {"A": "0"}).commands
    assert {name: word.text for name, word in command.environment.items()} == {"A": "1 2", "B": ""}


def test_wrappers_and_shells() -> None:
    reading = read_argv(
        ["sudo", "-E", "numactl", "-m", "0", "bash", "-c", "A=1 x $B\ny"], {"B": "2"}
    )
    assert [[word.text for word in command.words] for command in reading.commands] == [
        ["x", "2"],
        ["y"],
    ]
    assert reading.commands[0].wrappers == (("sudo", "-E"), ("numactl", "-m", "0"), ("bash", "-c"))
    assert reading.commands[0].words[0].origin == Origin("command line")


def test_container_run() -> None:
    (command,) = read_argv(["docker", "run", "-e", "A", "-e", "B=2", "i", "x"], {"A": "1"}).commands
    assert command.wrappers == (("docker", "run", "-e", "A", "-e", "B=2", "i"),)
    assert {name: word.text for name, word in command.environment.items()} == {"A": "1", "B": "2"}


def test_nothing_to_start() -> None:
    for argv in ([], [""], ["cd", "/"], ["sudo"], ["A=1"], ["numactl", "-m"], ["bash", "-c"]):
        assert [c.words[0].text for c in read_argv(argv, {}).commands] in ([], ["bash"])
    assert [note.id for note in read_argv(["--tp", "8"], {}).notes] == ["not-a-program"]
