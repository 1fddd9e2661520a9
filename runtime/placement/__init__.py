"""Placement: which device holds and computes each part of a model. It follows from the user's options, free
memory and measured speeds, and is decided from the file's header, before anything is loaded.
"""
