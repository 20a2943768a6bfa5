"""Judgment of recorded exchanges: state histories, assertions with evidence, and the grade of a run."""
