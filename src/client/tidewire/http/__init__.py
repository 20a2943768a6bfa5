"""HTTP layer of the client: requests and event streams over httpx. No other package of the client uses httpx, except the fakes in `tidewire.testing`."""
