"""The write path of a job, which turns the changes that an endpoint's function makes into events in the job's log."""
