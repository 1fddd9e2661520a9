"""Checks that a server does what common clients need: `satchel doctor api URL`.

A check is a public function of a module in checks/, found by its name.
"""
