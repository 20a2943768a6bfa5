"""ASGI application of the server, with its routes and event streams."""
