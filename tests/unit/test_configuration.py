"""Configuration of the server: precedence of its sources, and messages about invalid settings."""

import os
import re
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from tidewire_server import Server
from tidewire_server.commands.banner import startup_banner
from tidewire_server.commands.configuration import ConfigurationError, configure
from tidewire_server.commands.flags import COMMON, FIELDS, FLAGS, SECRET, flag_of
from tidewire_server.commands.serve_command import serve
from tidewire_server.settings import Launch, Settings

DOCS = Path(__file__).parents[2] / "docs"
WITHOUT_FLAG = sorted(FIELDS.keys() - {"target"}.union(*FLAGS.values()) - SECRET)


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """Return a function that sets variables, after removing every variable that begins with `TIDEWIRE_`."""
    for variable in os.environ:
        if variable.startswith("TIDEWIRE_"):
            monkeypatch.delenv(variable)

    def set_variables(**variables: str):
        for variable, value in variables.items():
            monkeypatch.setenv(variable, value)

    return set_variables


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path.__class__("some.toml")

    def write(text: str):
        path.write_text(text)
        return path

    return write


def errors_of(*given) -> list[str]:
    with pytest.raises(ConfigurationError) as refused:
        configure(*given)
    return str(refused.value).splitlines()


def origins(configuration, settings: Settings | None = None) -> dict[str, tuple[str, str]]:
    settings = settings or Settings(**configuration.settings)
    return {name: (value, origin) for name, value, origin in configuration.table(settings)}


def test_precedence_is_flag_then_environment_then_file_then_code(file, environment):
    text = "heartbeat = 2\nretry = 2\nmax_inputs = 2\n"
    environment(TIDEWIRE_HEARTBEAT="3", TIDEWIRE_RETRY="3")
    configuration = configure({"heartbeat": "4"}, file(text))
    assert configuration.settings == {"heartbeat": 4.0, "retry": 3.0, "max_inputs": 2}
    found = origins(configuration, Settings(max_threads=7, **configuration.settings))
    assert found["heartbeat"] == ("4", "--heartbeat")
    assert found["retry"] == ("3", "TIDEWIRE_RETRY")
    assert found["max_inputs"] == ("2", "some.toml:3")
    assert found["max_threads"] == ("7", "the server's code")
    assert found["port"] == ("8000", "default")


def test_every_setting_can_be_set_in_the_file(file):
    values = {
        "target": "x:y",
        "host": "::",
        "port_file": "p",
        "model": "m",
        "device": "cpu",
        "log_level": "debug",
        "tokens": ["a:b"],
        "operator_tokens": ["o"],
        "cors_origins": ["https://example.com"],
        "allowed_hosts": ["example.com"],
        "stream_token_secret": "s" * 32,
        "root_path": "/under",
        "script": True,
        "forwarded_allow_ips": ["10.0.0.1"],
        "upstream": ["http://127.0.0.1:1/v1"],
        "served_model_names": ["m"],
    }
    lines = []
    for model in (Launch, Settings):
        for name, field in model.model_fields.items():
            value = values.get(name, field.default)
            value = "none" if value is None else value
            lines.append(f"{name} = {str(value).lower() if isinstance(value, bool) else repr(value)}")
    configuration = configure({}, file("\n".join(lines)))
    found = origins(configuration)
    assert all(origin.startswith("some.toml:") for _, origin in found.values())
    assert set(found) == {*Launch.model_fields, *Settings.model_fields}


def test_each_error_names_its_source_the_allowed_values_and_a_similar_name(file, environment):
    path = file(
        """# a comment
heartbeat = "often"
max_queue_siz = 5

port = 70_000
max_threads = true
log_level = "loud"
[endpoints."tidewire.script"]
concurrency_limit = 0
colour = 1
[endpoint.x]
"""
    )
    environment(TIDEWIRE_HEARTBEATS="1", TIDEWIRE_RETRY="0", TIDEWIRE_OF_SOMEBODY_ELSE="1")
    environment(TIDEWIRE_TOKENS="ann:")
    assert errors_of({}, path) == [
        "TIDEWIRE_HEARTBEATS: unknown setting; did you mean TIDEWIRE_HEARTBEAT?",
        "some.toml:6: max_threads = True: must be a whole number of at least 1",
        "some.toml:2: heartbeat = 'often': must be a number from 0.001 to 300",
        "TIDEWIRE_RETRY: retry = '0': must be a number from 0.001 to 60",
        "TIDEWIRE_TOKENS: tokens: a token must be TOKEN or PRINCIPAL:TOKEN, with neither part empty",
        "some.toml:5: port = 70000: must be a whole number from 0 to 65535",
        "some.toml:7: log_level = 'loud': must be debug or info or warning or error",
        "some.toml:9: concurrency_limit = 0: must be a whole number of at least 1, or none",
        "some.toml:10: unknown name 'colour'",
        "some.toml:3: unknown name 'max_queue_siz'; did you mean 'max_queue_size'?",
        "some.toml:11: unknown name 'endpoint'; did you mean 'endpoints'?",
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("heartbeat =", "some.toml: Invalid value"),
        (f"heartbeat = {'9' * 5000}", "some.toml: Exceeds the limit (4300 digits)"),
        (f"heartbeat = {'[' * 5000}", "some.toml: maximum recursion depth exceeded"),
        ("endpoints = 5", "some.toml:1: must be a table in the file: [endpoints.NAME]"),
        ("[endpoints]\nx = 1", "some.toml:2: must be a table in the file: [endpoints.x]"),
        ('tokens = "a:b"', "some.toml:1: tokens: must be a list of strings"),
        ("tokens = [1]", "some.toml:1: tokens: must be a list of strings"),
        ("retry = inf", "some.toml:1: retry = inf: must be a number from 0.001 to 60"),
        ("retry = 1\nretry = 2", "some.toml: Cannot overwrite a value"),
    ],
)
def test_invalid_file_is_reported_with_its_line(file, text, message):
    (error,) = errors_of({}, file(text))
    assert error.startswith(message)


def test_file_that_is_not_utf8_is_reported(file):
    path = file("")
    path.write_bytes(b"\xff")
    assert errors_of({}, path) == ["some.toml is not UTF-8"]


def test_byte_order_mark_of_a_file_is_ignored(file, tmp_path):
    path, key = file(""), tmp_path / "key"
    path.write_text('port = 1\nupstream = ["http://127.0.0.1:1/v1"]', encoding="utf-8-sig")
    key.write_text("secret", encoding="utf-8-sig")
    launch = configure({"upstream_key_file": str(key)}, path).launch
    assert (launch.port, launch.upstream_key) == (1, "secret")


def test_secrets_do_not_appear_in_tables_reprs_or_errors():
    secret = "s" * 40
    given = {"tokens": ("ann:sesame",), "stream_token_secret": secret}
    configuration = configure(given)
    shown = str(origins(configuration))
    settings = Settings(**configuration.settings)
    assert not any(each in shown + repr(settings) for each in ("sesame", secret))
    assert not any(
        "hush" in line for line in errors_of({"stream_token_secret": "hush", "tokens": ("hush:",)})
    )


@pytest.mark.parametrize("token", ["a b", " a", "ann:a\tb", "sesamé", "ann:a\n"])
def test_token_that_does_not_fit_into_a_header_is_refused(token):
    (error,) = errors_of({"tokens": (token,)})
    assert (
        error
        == "--token: tokens: a token must consist of visible ASCII characters without spaces, because it is sent in a header"
    )


def test_none_is_accepted_only_by_optional_settings():
    assert configure({"default_concurrency_limit": "none"}).settings == {"default_concurrency_limit": None}
    assert len(errors_of({"max_threads": "none"})) == 1


@pytest.mark.parametrize("setting", ["tokens", "operator_tokens"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])  # some editors write a byte order mark
def test_tokens_are_read_from_a_file(setting, encoding, file, tmp_path):
    tokens = tmp_path / "tokens.txt"
    tokens.write_text("ann:sesame\n\n  bob:open  \n", encoding=encoding)
    name = setting.replace("tokens", "token_file")
    configuration = configure({name: "tokens.txt"}, file("port = 1"))
    assert configuration.settings == {setting: ("ann:sesame", "bob:open")}
    assert origins(configuration)[setting] == ("2, not shown", flag_of(name))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "--token-file: cannot read tokens.txt: No such file or directory"),
        (b"", "--token-file: tokens.txt contains no token"),
        (b"\xff", "--token-file: tokens.txt is not UTF-8"),
        (b"a b", "--token-file: tokens.txt: a token must consist of visible ASCII characters without spaces"),
    ],
)
def test_invalid_token_file_is_refused(text, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if text is not None:
        (tmp_path / "tokens.txt").write_bytes(text)
    (error,) = errors_of({"token_file": "tokens.txt"})
    assert error.startswith(message)


def test_tokens_in_two_places_are_refused(tmp_path, environment):
    (tmp_path / "tokens.txt").write_text("ann:sesame")
    environment(TIDEWIRE_TOKENS="bob:open")
    (error,) = errors_of({"token_file": str(tmp_path / "tokens.txt")})
    assert error == "--token-file: tokens are also set in TIDEWIRE_TOKENS; use one of the two"


def test_token_of_the_client_in_the_environment_is_ignored(environment):
    environment(TIDEWIRE_TOKEN="sesame", TIDEWIRE_URL="http://127.0.0.1:8000")
    assert configure({}).settings == {}


@pytest.mark.parametrize("name", ["", "http://a.example", "a.example:80", "*.example", "a b", "[::1]"])
def test_allowed_host_that_is_not_a_host_name_is_refused(name):
    (error,) = errors_of({"allowed_hosts": (name,)})
    assert error.startswith("--allowed-host: allowed_hosts")
    assert "is neither a host name" in error


@pytest.mark.parametrize(
    "origin",
    [
        "",
        "app.example.com",
        "https://app.example.com/",
        "https://*.example.com",
        "https://App.example.com",
        "https://app.example.com:",
        "https://app.example.com:443",
        "http://[::1]:80",
        "https://a.example,https://b.example",
        "null",
    ],
)
def test_cors_origin_that_is_not_an_origin_is_refused(origin):
    (error,) = errors_of({"cors_origins": (origin,)})
    assert error.startswith("--cors-origin: cors_origins")
    assert "is neither an origin" in error


def test_cors_origins_have_a_scheme_and_a_host():
    origins = (
        "*",
        "https://a.example",
        "http://localhost:3000",
        "http://[::1]:8080",
        "capacitor://localhost",
    )
    assert configure({"cors_origins": origins}).settings == {"cors_origins": origins}


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("TIDEWIRE_TOKENS", '["ann:sesame", "bob:open"]'),
        ("TIDEWIRE_TOKENS", "ann:sesame,bob:open"),
        ("TIDEWIRE_OPERATOR_TOKENS", "'sesame'"),
        ("TIDEWIRE_SERVED_MODEL_NAMES", ' ["a"]'),
    ],
)
def test_list_in_the_environment_that_is_not_separated_by_spaces_is_refused(environment, variable, value):
    environment(**{variable: value})
    message = f"{variable}: separate the values by spaces, without brackets, commas and quotes"
    assert errors_of({}) == [message]


@pytest.mark.parametrize("variable", ["TIDEWIRE_TOKENS", "TIDEWIRE_STREAM_TOKEN_SECRET"])
def test_empty_secret_in_the_environment_is_refused(environment, variable):
    environment(**{variable: " "})
    with pytest.raises(ConfigurationError, match=f"{variable} is empty; set it, or remove it"):
        configure({})


def test_variable_without_the_tidewire_prefix_is_ignored(environment):
    environment(TOKENS="")
    assert configure({}).settings == {}


def test_endpoints_cannot_be_configured_in_the_environment(environment):
    environment(TIDEWIRE_ENDPOINTS="double")
    assert errors_of({}) == ["TIDEWIRE_ENDPOINTS: must be a table in the file: [endpoints.NAME]"]


def test_empty_environment_variable_is_ignored(environment):
    environment(TIDEWIRE_RETRY="", TIDEWIRE_CORS_ORIGINS="")
    assert configure({}).settings == {}


def test_list_in_the_environment_is_separated_by_spaces(environment):
    environment(TIDEWIRE_CORS_ORIGINS="https://a.example https://b.example")
    assert configure({}).settings == {"cors_origins": ("https://a.example", "https://b.example")}


def test_every_setting_can_be_set_in_the_environment(environment):
    values = {"tokens": "a:b", "stream_token_secret": "s" * 32, "log_level": "debug", "root_path": "/under"}
    values |= {"target": "x:y", "cors_origins": "https://a.example", "allowed_hosts": "a.example"}
    values |= {"operator_tokens": "o"}
    values |= {"forwarded_allow_ips": "10.0.0.1 fd00::/8"}
    environment(
        **{f"TIDEWIRE_{name.upper()}": values.get(name, str(field.default)) for name, field in FIELDS.items()}
    )
    found = origins(configure({}))
    assert {name: origin for name, (_, origin) in found.items()} == {
        name: f"TIDEWIRE_{name.upper()}" for name in FIELDS
    }


def test_configuration_file_may_be_a_pipe(tmp_path):
    reads, writes = os.pipe()
    os.write(writes, b"port = 9\n")
    os.close(writes)
    try:
        assert configure({}, Path(f"/dev/fd/{reads}")).launch.port == 9
    finally:
        os.close(reads)


def test_setting_of_an_endpoint_is_shown_with_its_line(file):
    configuration = configure({}, file('\n[endpoints.double]\ntime_limit = "none"\nmax_queue_size = 3\n'))
    found = origins(configuration)
    assert found["endpoints.double.max_queue_size"] == ("3", "some.toml:4")
    assert found["endpoints.double.time_limit"] == ("none", "some.toml:3")
    assert configuration.origin("endpoints", "double") == "some.toml:2"


# ---- flags


def test_only_settings_named_in_a_guide_or_the_banner_have_a_flag():
    pages = [page.read_text() for folder in ("tutorial", "how-to") for page in (DOCS / folder).glob("*.md")]
    banner = startup_banner(Server(merge_window=0, tokens=["a:b"]), "http://127.0.0.1:8000")
    named = "\n".join([*pages, banner, (DOCS / "examples/demo.py").read_text()])
    assert set().union(*FLAGS.values()) <= FIELDS.keys()
    assert 18 <= len(set().union(*FLAGS.values()) & Settings.model_fields.keys()) <= 24
    unnamed = [
        name
        for names in FLAGS.values()
        for name in names
        if not re.search(rf"(?<![\w-])({name}|{flag_of(name)}|TIDEWIRE_{name.upper()})(?![\w-])", named)
    ]
    assert not unnamed


@pytest.mark.parametrize("name", WITHOUT_FLAG)
def test_setting_without_a_flag_is_refused_with_its_line_for_the_file(name, file, environment):
    value = {"forwarded_allow_ips": "10.0.0.1"}.get(name, str(FIELDS[name].default))
    ended = CliRunner().invoke(serve, ["mine.py:server", flag_of(name), value])
    assert ended.exit_code == 2
    found = re.fullmatch(
        r"tidewire serve: (--\S+) is not a flag; set it in the file: (.*) \(or in the environment: (\w+)=(.*)\)\n",
        ended.stderr,
    )
    assert found is not None
    assert found[1] == flag_of(name)
    assert origins(configure({}, file(found[2])))[name][1] == "some.toml:1"
    environment(**{found[3]: found[4]})
    assert origins(configure({}))[name][1] == found[3]


def test_value_of_a_refused_flag_may_follow_an_equals_sign():
    ended = CliRunner().invoke(serve, ["--max-event-bytes=1000000"])
    assert ended.stderr == (
        "tidewire serve: --max-event-bytes is not a flag; set it in the file: max_event_bytes = 1000000"
        " (or in the environment: TIDEWIRE_MAX_EVENT_BYTES=1000000)\n"
    )


def test_refused_flag_without_a_value_shows_the_default_as_example():
    ended = CliRunner().invoke(serve, ["--max-event-bytes"])
    assert "set it in the file: max_event_bytes = 1048576 (or" in ended.stderr


@pytest.mark.parametrize("name", sorted(SECRET))
@pytest.mark.parametrize("separator", [" ", "="])
def test_secret_on_the_command_line_is_refused_without_showing_it(name, separator):
    arguments = f"{flag_of(name)}{separator}ann:sesame".split()
    ended = CliRunner().invoke(serve, ["mine.py:server", *arguments])
    assert ended.exit_code == 2
    assert ended.stderr.count("\n") == 1
    assert f"{flag_of(name)} is not a flag, because other users can read command lines" in ended.stderr
    assert f"TIDEWIRE_{name.upper()}" in ended.stderr
    assert ("--token-file" in ended.stderr) == (name == "tokens")
    assert "sesame" not in ended.stderr


def test_unknown_flag_is_refused_with_the_closest_flag():
    ended = CliRunner().invoke(serve, ["--max-queue-siz", "1"])
    assert ended.exit_code == 2
    assert "--max-queue-size" in ended.stderr


@pytest.mark.parametrize(("width", "most"), [(60, 68), (80, 51), (140, 41)])
def test_help_is_short_and_help_all_shows_every_flag(monkeypatch, width, most):
    monkeypatch.setenv("COLUMNS", str(width))
    shown = CliRunner().invoke(serve, ["--help"]).stdout
    assert shown.count("\n") <= most
    assert all(flag_of(name) in shown for name in COMMON)
    assert "--help-all" in shown
    assert "max_threads = 8" in " ".join(shown.split())
    monkeypatch.setenv("COLUMNS", "80")
    everything = CliRunner().invoke(serve, ["--help-all"]).stdout
    assert all(flag_of(name) in everything for names in FLAGS.values() for name in names)


def test_each_flag_has_one_group_and_secrets_have_no_flag():
    # Every user of the machine can read the command lines of processes.
    assert not SECRET & set().union(*FLAGS.values())
    names = [name for group in FLAGS.values() for name in group]
    assert len(names) == len(set(names))
    options = {name for option in get_command(serve).params for name in option.opts if name.startswith("--")}
    assert options == {*map(flag_of, names), "--config", "--show-config", "--help-all"}
