"""Raw sockets: requests, recorded exchanges, event streams byte by byte, and a proxy that breaks connections."""
