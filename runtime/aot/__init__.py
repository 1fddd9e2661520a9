"""Ahead-of-time compilation: a model file that holds its compiled plan and its tokenizer as tables, for the C
library of cext/embed, which runs it without Python.
"""
