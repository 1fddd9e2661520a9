"""Weights of a file in the memory of devices: resident, packed, prefetched, cached."""
