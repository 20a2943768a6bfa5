"""Helpers that tests share: servers, proxies, checks and generators. Imported as `from support.X import Y`."""
