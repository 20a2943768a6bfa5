"""Endpoints, which are Python functions with schemas derived from their signatures, and the code that calls them."""
