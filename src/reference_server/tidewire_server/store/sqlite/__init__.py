"""SQLite implementation of the store.

Each server has one file. The jobs in the file survive a restart of the server process.
"""
