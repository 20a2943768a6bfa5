"""Faulty clients: the plain client with one fault each."""
