"""The three errors that reach a user, each one line: what, where, expected, got, what to do.

Every package raises them, so they stand below all and import nothing. The command line prints them without
a traceback.
"""


class SatchelError(Exception):
    """Base of the errors that are meant for users. Anything else that escapes is a bug of ours."""


class ModelError(SatchelError):
    """A model file is malformed, incomplete, or of a kind that this version does not run."""


class RequestError(SatchelError):
    """What was asked for cannot be done: an option out of range, a prompt longer than the context."""


class DeviceError(SatchelError):
    """A backend or its device is missing, refused the work, or failed."""
