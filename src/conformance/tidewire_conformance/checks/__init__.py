"""Checks of servers, one module per area. `registry.checks` imports every module of this package."""
