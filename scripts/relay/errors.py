"""The one exception for a user's mistake: entry points print its line and exit, without a traceback."""


class UserError(ValueError):
    """One line that names the thing, its value, and what is allowed."""
