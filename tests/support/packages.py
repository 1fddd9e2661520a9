"""The packages of Satchel: folders of the root, from the lowest to the highest; cext is a leaf."""

PACKAGES = ("errors", "quant", "formats", "runtime", "store", "server", "cli", "cext")
