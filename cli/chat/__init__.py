"""The terminal chat of `satchel chat`, and the parts that it shares with `satchel run`."""
