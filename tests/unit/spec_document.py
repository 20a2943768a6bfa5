from support.spec_document import *  # noqa: F403 - moved
