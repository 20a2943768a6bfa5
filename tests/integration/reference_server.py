from support.reference_server import *  # noqa: F403 - moved
