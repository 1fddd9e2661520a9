"""The tool-call formats. Each file defines one FAMILY."""
