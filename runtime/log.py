"""The library's logger, "satchel". It is silent unless the program configures logging. From INFO upwards, no
record contains text of a prompt or an answer.
"""

from __future__ import annotations

import logging

LOG = logging.getLogger("satchel")
LOG.addHandler(logging.NullHandler())
