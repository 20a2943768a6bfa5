"""Dynamic batching: one call of a function processes items of many jobs. Each item of the batch is a *row* of the call.

The store's queue decides which waiting items form a batch, and when the batch may start (`store.memory.memory_batches`).

- `batch_call` runs one batch, and splits the list that a batched function returns into one result for each row.
- `generator_yields` updates the values of the rows when a batched generator yields.
"""
