"""Conversion of a call's arguments to the body of the request that submits a job."""
