"""Display of jobs and of `map` progress in a Jupyter notebook."""
