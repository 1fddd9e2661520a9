"""Expert cache: if a mixture's experts are on the CPU, a GPU caches those that tokens are routed to most, and
computes them while the CPU computes the others. The cache counts the routing and adapts to it.
"""
