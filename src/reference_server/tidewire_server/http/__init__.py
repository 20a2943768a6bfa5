"""ASGI application of the server: routes, event streams, replay."""
