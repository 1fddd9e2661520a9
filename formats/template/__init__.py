"""Chat templates: a conversation in, the model's prompt out, by the Jinja template that the model file
carries.

The template is hostile code: it runs in a sandbox with a budget, and nothing of Jinja is imported before the
first use.
"""

from satchel.formats.template.chat import CHATML, ChatTemplate, from_metadata
from satchel.formats.template.limits import TemplateLimits

__all__ = ["CHATML", "ChatTemplate", "TemplateLimits", "from_metadata"]
