"""The pages of what is found in a launch, and between the nodes of a fleet: a file each, here."""

from __future__ import annotations

import os

PAGES = os.path.dirname(__file__)
