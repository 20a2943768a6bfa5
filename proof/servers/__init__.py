"""Faulty servers and the code that starts and judges them."""
