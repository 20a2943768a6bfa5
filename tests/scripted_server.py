from support.scripted_server import *  # noqa: F403 - moved
