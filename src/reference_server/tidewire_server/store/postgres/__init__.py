"""Store in a PostgreSQL database, which several servers share. Only this package imports psycopg, which is an extra.

`postgres_store` opens the store and connects its parts. `server_rows` and `postgres_jobs` describe how servers notice that another
one is dead, and own its jobs.
"""
