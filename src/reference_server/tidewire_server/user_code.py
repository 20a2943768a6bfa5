"""Distinguish the user's code in a stack trace from Python's libraries, this server and its client."""

import sysconfig
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Final

_CLIENT: Final = find_spec("tidewire")  # found without its import, which a server does not need

_LIBRARIES: Final = tuple(
    str(Path(folder).resolve())
    for folder in (
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        str(Path(__file__).parent),
        *((_CLIENT and _CLIENT.submodule_search_locations) or ()),
    )
)


def is_user_code(file: str) -> bool:
    """Return whether a frame with this file name belongs to the user's code, like `<stdin>` and the cells of a notebook."""
    return not file.startswith(("<frozen", "<string>")) and not str(Path(file).resolve()).startswith(
        _LIBRARIES
    )


def place_of(frame: FrameType) -> str:
    """Return the location of the innermost frame in the user's code. If there is none, use the innermost frame of all."""
    found: FrameType | None = frame
    while found is not None and not is_user_code(found.f_code.co_filename):
        found = found.f_back
    shown = found or frame
    return f"{shown.f_code.co_filename}:{shown.f_lineno} in {shown.f_code.co_name}"
