"""The web page at `/`, on which people call the endpoints of a server and watch the results: routes for its static files."""

from tidewire_server.page.static_files import page_routes

__all__ = ["page_routes"]
