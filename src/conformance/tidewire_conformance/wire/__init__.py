"""Raw-socket requests, recorded exchanges, an event-stream decoder and a proxy that breaks connections."""
