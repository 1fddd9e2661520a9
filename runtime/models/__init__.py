"""Architectures, one per file, found by name."""
