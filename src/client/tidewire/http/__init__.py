"""HTTP layer of the client, which makes requests and reads event streams with httpx2. No other package of the client
uses httpx2, except the fakes in `tidewire.testing`.
"""
