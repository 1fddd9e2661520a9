"""Devices: the binding of hal.h, and what is measured of a device."""
