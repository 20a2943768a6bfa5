"""Conformance tests for clients: the scenario player, the client mode of the suite, and two example clients."""
