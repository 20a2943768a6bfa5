"""Faulty clients, each the plain client with one fault."""
