"""Proof of the profile `sse`: faulty servers, faulty readers, and the readers of other projects."""
