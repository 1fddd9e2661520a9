"""Loops compiled by numba, and the vectors that they are made of."""
