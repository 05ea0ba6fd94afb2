"""A launch that was given as a command line, with other values."""

from __future__ import annotations

import shlex

from preflight.launches.source import Reading


def command_line(before: Reading, after: Reading) -> str:
    """The words of its one command, with the variables that changed in front; "" for several."""
    if len(after.commands) != 1:
        return ""
    old, new = before.commands[0], after.commands[0]
    set_here = [
        f"{name}={shlex.quote(word.text)}"
        for name, word in new.environment.items()
        if old.environment.get(name) != word or word.origin.source == "command line"
    ]
    gone = [f"-u {name}" for name in old.environment if name not in new.environment]
    lead = ["env", *gone, *set_here] if gone else set_here
    wrappers = [shlex.quote(word) for words in new.wrappers for word in words if words[0] != "env"]
    return " ".join([*lead, *wrappers, *(shlex.quote(word.text) for word in new.words)])
