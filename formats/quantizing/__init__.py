"""Quantization of a file: the choice of each tensor's format, rule files, AWQ scaling, and the encoding of
rows.
"""
