"""The command that installs an extra of Tidewire, for error messages about packages that are not installed.

This module imports only the standard library, so that the server and the conformance suite can use it before they import
anything else.
"""

from typing import Any


def install_command(extra: str) -> str:
    """Return the command that installs an extra from the same source as Tidewire itself.

    pip records this source in the file `direct_url.json` (PEP 610), unless Tidewire was installed from a package index.
    """
    # Import these modules late, because the message is rarely needed and `urllib.request` is slow to import.
    import json  # noqa: PLC0415
    import shlex  # noqa: PLC0415
    from importlib import metadata  # noqa: PLC0415
    from urllib.parse import urlsplit  # noqa: PLC0415
    from urllib.request import url2pathname  # noqa: PLC0415

    try:
        text = metadata.distribution("tidewire").read_text("direct_url.json")
    except metadata.PackageNotFoundError:
        return f"pip install '.[{extra}]' in the folder with the source code of Tidewire"
    try:
        origin: Any = json.loads(text or "")
        url = urlsplit(origin["url"])
    except (ValueError, TypeError, KeyError):
        return f"pip install 'tidewire[{extra}]'"
    if url.scheme == "file" and "vcs_info" not in origin:
        is_editable = origin.get("dir_info", {}).get("editable", False)
        return f"pip install {'-e ' * is_editable}{shlex.quote(f'{url2pathname(url.path)}[{extra}]')}"
    source = origin["url"]
    if vcs := origin.get("vcs_info"):
        source = f"{vcs['vcs']}+{source}@{vcs['commit_id']}"
    return f"pip install {shlex.quote(f'tidewire[{extra}] @ {source}')}"
