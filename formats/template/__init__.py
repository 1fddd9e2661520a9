"""Chat templates: render a conversation to the model's prompt with the Jinja template of the model file.

A template is untrusted code: it runs in a sandbox with a budget. Jinja is imported at the first use only.
"""

from satchel.formats.template.chat import ChatTemplate, from_metadata
from satchel.formats.template.limits import TemplateLimits

__all__ = ["ChatTemplate", "TemplateLimits", "from_metadata"]
