"""Devices: the binding of hal.h, and measurements of devices."""
