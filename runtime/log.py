"""The library's logger, "satchel". A program that sets up no logging hears nothing; from INFO upwards no
record holds text of a prompt or an answer.
"""

from __future__ import annotations

import logging

LOG = logging.getLogger("satchel")
LOG.addHandler(logging.NullHandler())
