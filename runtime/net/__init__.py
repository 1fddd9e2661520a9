"""Devices of other hosts: the server that lends a host's devices, and the device that a program sees."""
