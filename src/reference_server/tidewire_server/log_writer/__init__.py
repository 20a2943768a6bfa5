"""The write path: changes that functions make become events in the log of their job."""
