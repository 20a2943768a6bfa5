"""Conformance tests for clients: `scenarios` plays the scenarios and judges a client, and `examples` has two clients to try."""
