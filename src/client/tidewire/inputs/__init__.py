"""From the arguments of a call to the body of a submit."""
