"""Stands before the package of this name in tests with Ray. jsonschema imports that where it is installed,
and it compiles a grammar as it is imported, which takes three times as long as the rest of `import ray`; each
process of a cluster would. Without it jsonschema checks no internationalized addresses; Ray has none.
"""

raise ImportError("left out for the processes of a Ray cluster")
