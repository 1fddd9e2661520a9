"""Which device holds and computes which part of a model: what is asked for, what fits, and what is done first
by the measured speeds. Decided from a file's header, before anything is loaded.
"""
