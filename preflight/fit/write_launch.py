"""Writes an edited launch back: whole or not at all, with its mode, its owner and a copy before."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Sequence

from preflight.base.usage_error import UsageError
from preflight.fit.launch_edit import Edit

COPY = ".bak"
_MARK = b"\xef\xbb\xbf"


def write_edits(edits: Sequence[Edit]) -> tuple[str, ...]:
    """The paths that were written. Raises UsageError for what cannot be, before anything is."""
    for edit in edits:
        _refuse_changed(edit)
    for edit in edits:
        _write(edit)
    return tuple(edit.path for edit in edits)


def _refuse_changed(edit: Edit) -> None:
    try:
        with open(edit.path, "rb") as file:
            now = file.read()
    except OSError as error:
        raise UsageError(f"--write {edit.path}: {error.strerror}") from None
    if now.removeprefix(_MARK) != edit.before.encode():
        raise UsageError(f"--write {edit.path}: it has changed since it was read: run fit again")


def _write(edit: Edit) -> None:
    try:
        _replace(edit)
    except OSError as error:
        raise UsageError(f"--write {edit.path}: {error.strerror}: it is as it was") from None


def _replace(edit: Edit) -> None:
    real = os.path.realpath(edit.path)
    folder = os.path.dirname(real)
    with open(real, "rb") as file:
        before = file.read()
    status = os.stat(real)
    mark = _MARK if before.startswith(_MARK) else b""
    for place, content in ((f"{real}{COPY}", before), (real, mark + edit.after.encode())):
        number, name = tempfile.mkstemp(dir=folder, prefix=".fit-")
        try:
            with os.fdopen(number, "wb") as file:
                file.write(content)
                file.flush()
                os.fchmod(file.fileno(), stat.S_IMODE(status.st_mode))
                _own(file.fileno(), status)
                os.fsync(file.fileno())
            os.replace(name, place)
        except BaseException:
            os.unlink(name)
            raise


def _own(number: int, status: os.stat_result) -> None:
    """The owner stays where this may say so; who may not is the owner himself, or cannot help."""
    try:
        os.fchown(number, status.st_uid, status.st_gid)
    except PermissionError:
        return
