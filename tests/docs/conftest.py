"""Fixtures of the database that pages name as `postgresql://tidewire@db/tidewire`."""

from integration.conftest import database_url, postgres_of_the_run

__all__ = ["database_url", "postgres_of_the_run"]
