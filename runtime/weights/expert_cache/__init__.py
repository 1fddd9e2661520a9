"""Expert cache: of a mixture whose experts are with the CPU, a GPU caches those that tokens are routed to
most, and computes them while the CPU computes the others. The cache counts the routing and follows it.
"""
