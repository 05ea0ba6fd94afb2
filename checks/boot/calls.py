"""What a file tells that is too long to be recorded."""

from __future__ import annotations

import re


def held() -> list[str]:
    """Return the packages that dpkg holds, by /var/lib/dpkg/status."""
    with open("/var/lib/dpkg/status", encoding="utf-8", errors="replace") as file:
        return re.findall(r"^Package: (\S+)\nStatus: hold ", file.read(), re.MULTILINE)
