"""Load test of a server from outside: the schedule of requests, the client that sends and times them, and the
results.
"""
