"""The engine: steps of a batch, their requests, and what the host does for them."""
