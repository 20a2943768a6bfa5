"""What needs uvicorn's internals: back pressure per connection, and bounds on connections and request heads."""
