from support.foreign_programs import *  # noqa: F403 - moved
