"""Loops as machine code: from the C library, or compiled by numba."""
