"""The one error that a user can mend: a wrong input."""


class UsageError(ValueError):
    """A wrong input; the sentence names the value, the rule and a right spelling."""


class NoLaunchError(UsageError):
    """A source that can be read, but starts no program that is known here."""
