"""The checks, one module an area. A module that is put here is found by `registry.checks`."""
