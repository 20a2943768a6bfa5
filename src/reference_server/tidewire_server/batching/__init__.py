"""Request batching: items of many jobs run in one call of a function.

forming.py decides which items go together and when, without a clock; results.py which result belongs to which item;
rows.py what a generator's yields mean for its rows. call.py runs one batch.
"""
