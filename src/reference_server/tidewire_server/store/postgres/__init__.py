"""Store in a PostgreSQL database, which several servers share.

Only this package imports psycopg. `http/lifespan.py` does not let a server open such a store yet: the job service does not
call its heartbeats and does not adopt the jobs of dead servers. The store contract tests and the tests with two stores run.
"""
