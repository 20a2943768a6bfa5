"""The ASGI application: routes, event streams, replay."""
