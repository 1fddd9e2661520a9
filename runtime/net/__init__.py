"""Devices of other hosts: the server of a host's devices, and the device that a program sees."""
