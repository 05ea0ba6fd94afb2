"""What a reading of a launch starts and says, as plain texts to compare."""

from __future__ import annotations

from pathlib import Path

from preflight.launches.source import Command, Reading


def argv(command: Command) -> list[str]:
    """Return the program of a command and its arguments."""
    return [word.text for word in command.words]


def argvs(reading: Reading) -> list[list[str]]:
    """Return ``argv`` of each command."""
    return [argv(command) for command in reading.commands]


def programs(reading: Reading) -> list[str]:
    """Return the first word of each command."""
    return [command.words[0].text for command in reading.commands]


def ids(reading: Reading) -> list[str]:
    """Return the id of each note."""
    return [note.id for note in reading.notes]


def variables(command: Command) -> dict[str, str]:
    """Return the text of each variable of a command."""
    return {name: word.text for name, word in command.environment.items()}


def written(folder: Path, text: str, name: str = "launch.sh") -> Path:
    """Write a launch file, and return its path."""
    path = folder / name
    path.write_text(text)
    return path
