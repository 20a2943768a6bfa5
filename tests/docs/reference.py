"""Generated parts of the reference documentation. `python tests/docs/reference.py` writes them into the pages."""

import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

REFERENCE = Path(__file__).parents[2] / "docs/reference"


def errors() -> str:
    import tidewire.errors

    tree = re.search(r"\n\n(    TidewireError\n.*?)\n\n", tidewire.errors.__doc__ or "", re.DOTALL)
    assert tree is not None
    return "```text\n" + "\n".join(line[4:] for line in tree[1].splitlines()) + "\n```"


def table_of(model: type[BaseModel]) -> str:
    from tidewire_server.commands.flags import FLAGS, flag_of, shown
    from tidewire_server.setting_errors import allowed

    rows = ["| setting | flag | default | allowed | meaning |", "|---|---|---|---|---|"]
    for name, field in model.model_fields.items():
        flag = f"`{flag_of(name)}`" if name in {"target"}.union(*FLAGS.values()) else ""
        default = shown(name, field.default)
        rows.append(f"| `{name}` | {flag} | `{default}` | {allowed(field)} | {field.description} |")
    return "\n".join(rows)


def statuses() -> str:
    from tidewire.following.http_status_actions import STATUS_TABLE, RequestKind, action_for

    kinds = [RequestKind.STREAM, RequestKind.REQUEST, RequestKind.SUBMIT]
    rows = ["| status | event stream | read | submit |", "|---|---|---|---|"]
    for status in STATUS_TABLE:
        cells = [f"`{action_for(status, kind, has_cursor=True).value}`" for kind in kinds]
        rows.append(f"| {status} | {' | '.join(cells)} |")
    for name, status in (("other 4xx", 418), ("all others", 599)):
        cells = [f"`{action_for(status, kind).value}`" for kind in kinds]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(rows)


def actions() -> str:
    """Return a Markdown table of the actions and their docstrings."""
    import tidewire.following.http_status_actions as module

    source = inspect.getsource(module.Action)
    rows = ["| action | meaning |", "|---|---|"]
    for value, meaning in re.findall(r' = "(\w+)"\n    """(.*?)"""', source, re.DOTALL):
        rows.append(f"| `{value}` | {' '.join(meaning.split())} |")
    return "\n".join(rows)


def faults() -> str:
    """Return a Markdown table of the request faults and their docstrings."""
    import tidewire.following.request_policy as module

    rows = [
        "| fault | at first contact | at first contact, after a request reached a server or a gateway | later |",
        "|---|---|---|---|",
    ]
    meanings = dict(
        re.findall(r' = "(\w+)"\n    """(.*?)"""', inspect.getsource(module.RequestFault), re.DOTALL)
    )
    for fault, actions in module.FAULT_TABLE.items():
        cells = " | ".join(f"`{action.value}`" for action in actions)
        rows.append(f"| {' '.join(meanings[fault.value].split())} | {cells} |")
    return "\n".join(rows)


def retry_limits() -> str:
    """Return a Markdown table of the fields of `RetryPolicy` and their docstrings."""
    from tidewire.following.retry_policy import RetryPolicy

    rows = ["| field | default | meaning |", "|---|---|---|"]
    pattern = r'^    (\w+): .*? = (.*?)\n    """(.*?)"""'
    for name, default, meaning in re.findall(
        pattern, inspect.getsource(RetryPolicy), re.DOTALL | re.MULTILINE
    ):
        rows.append(f"| `{name}` | `{default}` | {' '.join(meaning.split())} |")
    return "\n".join(rows)


def interruptions() -> str:
    """Return a Markdown table of the interruptions, what they count as, and the wait after them."""
    import tidewire.following.request_policy as module

    rows = ["| interruption | counts as a failure | wait |", "|---|---|---|"]
    meanings = dict(
        re.findall(r' = "(\w+)"\n    """(.*?)"""', inspect.getsource(module.Interruption), re.DOTALL)
    )
    waits = {
        (True, False): "the backoff",
        (False, True): "the requested time",
        (True, True): "the backoff or the requested time, whichever is longer",
    }
    for interruption, row in module.RETRY_TABLE.items():
        counts = "yes" if row.is_failure else "no"
        meaning = " ".join(meanings[interruption.value].split())
        rows.append(f"| {meaning} | {counts} | {waits[row]} |")
    return "\n".join(rows)


def settings() -> str:
    from tidewire_server.settings import Settings

    return table_of(Settings)


def launch() -> str:
    from tidewire_server.settings import Launch

    return table_of(Launch)


def of_endpoints() -> str:
    from tidewire_server.commands.configuration import EndpointSettings
    from tidewire_server.setting_errors import allowed

    rows = ["| in `[endpoints.NAME]` | allowed | meaning |", "|---|---|---|"]
    for name, field in EndpointSettings.model_fields.items():
        rows.append(f"| `{name}` | {allowed(field)} | {field.description} |")
    return "\n".join(rows)


def arguments_of(function: Callable[..., Any]) -> dict[str, str]:
    """Return the description of each parameter from the docstring. Fails if the docstring omits a parameter."""
    described = inspect.getdoc(function) or ""
    section = re.search(r"Args:\n(.*?)(?=\n\n\w+:\n|\Z)", described, re.DOTALL)
    section_text = section[1] if section else ""
    found = re.findall(r"^    (\w+): (.*?)(?=^    \w+: |\Z)", section_text, re.DOTALL | re.MULTILINE)
    names = [name for name in inspect.signature(function).parameters if name != "self"]
    assert not found or [name for name, _ in found] == names, function
    return {name: " ".join(meaning.split()) for name, meaning in found}


def options() -> str:
    from tidewire_server import Server

    rows = [
        f"| `{name}` | {meaning} |"
        for name, meaning in arguments_of(Server.endpoint).items()
        if name != "function"
    ]
    return "\n".join(["| option | meaning |", "|---|---|", *rows])


def arguments_of_client() -> str:
    from tidewire import AsyncClient

    rows = ["| argument | meaning | default |", "|---|---|---|"]
    parameters = inspect.signature(AsyncClient).parameters
    for name, meaning in arguments_of(AsyncClient.__init__).items():
        default = parameters[name].default
        shown = "" if default is inspect.Parameter.empty else f"`{default!r}`"
        rows.append(f"| `{name}` | {meaning} | {shown} |")
    return "\n".join(rows)


def client_options() -> str:
    from tidewire import AsyncClient

    rows = [f"| `{name}` | {meaning} |" for name, meaning in arguments_of(AsyncClient.with_options).items()]
    return "\n".join(["| option | meaning |", "|---|---|", *rows])


def methods(of: str, called: str, *left_out: str) -> Callable[[], str]:
    def table() -> str:
        import tidewire_server

        rows = [f"| on `{called}` | does |", "|---|---|"]
        for name, member in vars(getattr(tidewire_server, of)).items():
            if name.startswith("_") or name in left_out or inspect.ismemberdescriptor(member):
                continue
            function = member.fget if isinstance(member, property) else member
            meaning = " ".join((inspect.getdoc(function) or "").partition("\n\n")[0].split())
            details = "".join(f" `{each}`: {what}" for each, what in arguments_of(function).items())
            rows.append(
                f"| `{name}{'' if isinstance(member, property) else shape(function)}` | {meaning}{details} |"
            )
        return "\n".join(rows)

    return table


def gives() -> str:
    from tidewire_server import Append, ItemError, Last

    rows = ["| returned, yielded or raised | effect |", "|---|---|"]
    for each in (Append, Last, ItemError):
        meaning = " ".join((inspect.getdoc(each) or "").partition("\n\n")[0].split())
        details = "".join(f" `{name}`: {what}" for name, what in arguments_of(each).items())
        rows.append(f"| `{each.__name__}{shape(each)}` | {meaning}{details} |")
    return "\n".join(rows)


def shape(function: Callable[..., Any]) -> str:
    """Format the parameters of a function with their defaults, without types."""
    given = [each for name, each in inspect.signature(function).parameters.items() if name != "self"]
    plain = inspect.Signature([each.replace(annotation=inspect.Parameter.empty) for each in given])
    return re.sub(r"<(\w+\.)?(\w+):.*?>", r"\2", str(plain))


def suite_options() -> str:
    from tidewire_conformance.cli import conformance

    rows = ["| option | default | meaning |", "|---|---|---|"]
    for name, given in inspect.signature(conformance).parameters.items():
        _, details = get_args(given.annotation)
        if "Argument" in type(details).__name__:
            continue
        # In an `Annotated` type, typer stores the first option name in `default`.
        section_text = [
            each for each in (details.default, *(details.param_decls or ())) if str(each).startswith("-")
        ]
        names = ", ".join(f"`{each}`" for each in section_text or [f"--{name.replace('_', '-')}"])
        value = f" `{details.metavar}`" if details.metavar else ""
        default = f"`{given.default:g}`" if isinstance(given.default, (int, float)) else ""
        default = "" if isinstance(given.default, bool) else default
        repeatable = " Repeatable." if "list" in str(given.annotation) else ""
        rows.append(f"| {names}{value} | {default} | {details.help}{repeatable} |")
    return "\n".join(rows)


def plugin_options() -> str:
    from tidewire_conformance.pytest_plugin import OPTIONS

    rows = ["| option of pytest | meaning |", "|---|---|"]
    for name, option in OPTIONS.items():
        value = f"={option['metavar']}" if "metavar" in option else ""
        repeatable = " Repeatable." if option.get("action") == "append" else ""
        rows.append(f"| `{name}{value}` | {option['help'].removesuffix('; may be repeated.')}{repeatable} |")
    return "\n".join(rows)


def upstream_parameters() -> str:
    """Return a Markdown table of the members that each kind of engine gets."""
    from tidewire_server.generation.upstream.engine_kinds import ENGINE_KINDS, LOGPROB_MEMBERS

    kinds = list(ENGINE_KINDS.values())
    names = dict.fromkeys(name for kind in kinds for name in kind.members)
    rows = [
        "| member | "
        + " | ".join(
            kind.title if name == "openai" else f"{kind.title} (`{name}`)"
            for name, kind in ENGINE_KINDS.items()
        )
        + " |",
        "|---|" + "---|" * len(kinds),
    ]
    for name in names:
        cells = []
        for kind in kinds:
            sent = kind.members.get(name)
            only = " with `messages`" if sent and sent.only_messages else ""
            cells.append(f"`{sent.name}`{only}" if sent else "")
        rows.append(f"| `{name}` | {' | '.join(cells)} |")
    shown = ", ".join(f"`{name}`" for name in sorted(LOGPROB_MEMBERS))
    ids = [f"with `--tokenizer`, {kind.logprobs_mode}" if kind.with_ids is not None else "" for kind in kinds]
    rows.append(f"| {shown} | {' | '.join(ids)} |")
    after = ["yes" if kind.continues is not None else "runs again" for kind in kinds]
    rows.append(f"| *continues after a crash* | {' | '.join(after)} |")
    return "\n".join(rows)


def openai_members() -> str:
    """Return a Markdown table of the members of each endpoint of the OpenAI surface."""
    import json

    from tidewire_server.openai.request_members import ENDPOINTS, Member

    def cell(member: Member | None) -> str:
        if member is None:
            return "–"
        neutral = " or ".join(f"`{json.dumps(each)}`" for each in member.neutral)
        if member.ignored:
            return "no effect"
        if member.refused:
            return f"only {neutral}: {member.refused}" if neutral else f"refused: {member.refused}"
        meaning = f"`{member.generate}`" if member.generate else "yes"
        return f"{meaning}; {member.note}" if member.note else meaning

    names = sorted({name for members in ENDPOINTS.values() for name in members})
    rows = [
        f"| parameter | {' | '.join(f'`{path}`' for path in ENDPOINTS)} |",
        "|---|" + "---|" * len(ENDPOINTS),
    ]
    rows += [
        f"| `{name}` | {' | '.join(cell(members.get(name)) for members in ENDPOINTS.values())} |"
        for name in names
    ]
    return "\n".join(rows)


PARTS = {
    "upstream.md": {"parameters": upstream_parameters},
    "openai.md": {"members": openai_members},
    "conformance.md": {"options": suite_options, "plugin": plugin_options},
    "client.md": {
        "arguments": arguments_of_client,
        "client_options": client_options,
        "statuses": statuses,
        "actions": actions,
        "faults": faults,
        "retry_limits": retry_limits,
        "interruptions": interruptions,
        "errors": errors,
    },
    "server.md": {
        "options": options,
        "stream": methods("Stream", "stream"),
        "gives": gives,
        "context": methods("Context", "ctx"),
        "server": methods("Server", "server", "endpoint"),
        "settings": settings,
        "launch": launch,
        "of_endpoints": of_endpoints,
    },
}


def with_parts(page: str) -> str:
    """Return the text of a page with its generated parts up to date."""
    text = (REFERENCE / page).read_text()
    for name, make in PARTS[page].items():
        before, begins, rest = text.partition(f"<!-- generated: {name} -->\n")
        _, ends, after = rest.partition("<!-- end -->")
        assert ends, f"{page}: {name}"
        text = f"{before}{begins}{make()}\n{ends}{after}"
    return text


if __name__ == "__main__":
    for page in PARTS:
        (REFERENCE / page).write_text(with_parts(page))
