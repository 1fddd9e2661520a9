"""Backends written in Python: a module's make_backend fills the function struct of hal.h, as a C library
does.
"""
