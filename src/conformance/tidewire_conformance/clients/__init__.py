"""Conformance tests for clients: the scenario player, the suite's client mode, and two example clients."""
