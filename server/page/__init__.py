"""The web page at / and the dashboard: static files that ask the server's own routes for all the rest.

They need no key; the page asks its user for it, and sends it with what it asks for.
"""
