"""How a client is judged: the scenario player, the client mode of the suite, and clients it can be tried with."""
