"""Dynamic batching: one call of a function processes items of many jobs.

- `batch_queue` decides which items form a batch, and when.
- `batch_call` runs one batch.
- `batch_results` assigns the results of a call to its rows.
- `generator_yields` applies the values that a batched generator yields to its rows.
"""
