"""One file per family: each gives FAMILY."""
