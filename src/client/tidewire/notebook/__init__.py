"""Display of jobs, and of the progress of a `map`, in the outputs of a Jupyter notebook."""
