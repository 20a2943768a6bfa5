"""Requests and event streams over httpx; nothing outside this folder imports it."""
