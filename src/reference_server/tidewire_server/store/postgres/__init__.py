"""Store in a PostgreSQL database, which several servers share. Only this package imports psycopg, an optional dependency.

`postgres_store` opens the store and connects its parts. `server_rows` describes how servers notice that another server is dead,
and `postgres_jobs` how they become the owners of its jobs.
"""
