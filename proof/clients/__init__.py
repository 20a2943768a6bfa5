"""Faulty clients. Each of them is the plain client with one fault."""
