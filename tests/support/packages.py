"""Satchel's packages: folders of the root, from the lowest layer to the highest; cext is a leaf."""

PACKAGES = ("errors", "quant", "formats", "runtime", "store", "server", "cli", "cext")
