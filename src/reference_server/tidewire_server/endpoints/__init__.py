"""Endpoints and the code that calls them. An endpoint is a Python function with schemas that are derived from its
signature.
"""
