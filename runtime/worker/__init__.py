"""The engine in a process of its own, which can crash without the program. Requests and tokens travel as
messages over a pair of pipes; the next process recomputes what a lost one had.
"""
