"""Which part of a stack is the user's code, in place of Python's libraries and of this server."""

import sysconfig
from pathlib import Path
from types import FrameType
from typing import Final

_LIBRARIES: Final = tuple(
    str(Path(folder).resolve())
    for folder in (
        *(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        str(Path(__file__).parent),
    )
)


def is_user_code(file: str) -> bool:
    """Return whether a file, as a frame names it, contains the user's code. `<stdin>` and the cells of a notebook do."""
    return not file.startswith(("<frozen", "<string>")) and not str(Path(file).resolve()).startswith(
        _LIBRARIES
    )


def place_of(frame: FrameType) -> str:
    """Return the place of the innermost call in the user's code, or of the innermost call if there is none."""
    found: FrameType | None = frame
    while found is not None and not is_user_code(found.f_code.co_filename):
        found = found.f_back
    shown = found or frame
    return f"{shown.f_code.co_filename}:{shown.f_lineno} in {shown.f_code.co_name}"
