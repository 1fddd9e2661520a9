"""Load from outside: what is asked when, the client that asks and measures, and what came of it."""
