"""Layers that architectures are made of, and what all architectures share."""
