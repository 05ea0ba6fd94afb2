"""The one error that a user can mend: what was given cannot be meant."""


class UsageError(ValueError):
    """A value that cannot be meant; the sentence names the value, the rule and the spelling."""


class NoLaunchError(UsageError):
    """A source that can be read, and starts nothing that is known here."""
