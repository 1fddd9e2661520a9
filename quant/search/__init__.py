"""Searches of the encoders: scales and codes of the least weighted squared error."""
