"""The web page at / and the dashboard: static files that call the server's API.

The files need no API key. The page asks its user for the key and sends it with its requests.
"""
