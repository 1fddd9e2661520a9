"""The engine in a process of its own, which may crash without taking the program along. Requests go in and
tokens come out by messages over a pair of pipes; what was lost with a process is computed again by the next.
"""
