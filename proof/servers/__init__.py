"""Faulty servers, and what starts and judges them."""
