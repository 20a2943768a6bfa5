"""Run the application on a socket, including signal handling and shutdown."""
