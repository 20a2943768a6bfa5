"""HTTP layer of the client, which makes requests and reads event streams with httpx. No other package of the client
uses httpx, except the fakes in `tidewire.testing`.
"""
