"""Store in a PostgreSQL database, which several servers share.

Only this package imports psycopg.
"""
