"""What the program and its commands share before any option is parsed: the error of wrong use, and the
variable that names the configuration file.
"""

CONFIG = "SATCHEL_CONFIG"


class UsageError(Exception):
    """Wrong use of the command line that is found before typer parses it."""
