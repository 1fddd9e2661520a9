"""Weights in device memory: resident, packed, prefetched, cached."""
