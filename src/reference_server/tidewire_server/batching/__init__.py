"""Request batching: items of many jobs run in one call of a function.

batch_queue.py decides which items go together and when, without a clock; batch_results.py which result belongs to which item;
generator_yields.py what a generator's yields mean for its rows. batch_call.py runs one batch.
"""
