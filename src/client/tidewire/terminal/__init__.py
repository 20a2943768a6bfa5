"""Output on a terminal that the commands of the client and of the server share."""
