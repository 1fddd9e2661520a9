"""The slash commands of a chat, by topic. Importing them registers them, in the order of /help."""

from satchel.cli.chat.slash import talk, files, settings, model, sessions, facts  # noqa: I001
from satchel.cli.chat.slash import leave

__all__ = ["facts", "files", "leave", "model", "sessions", "settings", "talk"]
