"""What recorded bytes mean: state histories, assertions with their evidence, the grade of a run."""
