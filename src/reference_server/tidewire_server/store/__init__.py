"""Storage of jobs, event logs and the queue.

The modules `*_interface` define the storage protocols. `store_interface` shows how they are connected. The folders `memory`,
`sqlite` and `postgres` contain one implementation each, and `database` contains the parts that SQLite and PostgreSQL share.
"""
