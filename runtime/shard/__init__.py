"""Tensor parallelism: which part of each weight and state every rank of a group of devices has, inferred from
the ops of the graph. No architecture has a line for it.
"""
