"""SQLite implementation of the store.

Each server has one file, and its jobs survive a restart of the server process.
"""
