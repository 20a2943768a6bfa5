"""The server as a process: `tidewire serve`, its startup banner, signals, and exit codes."""

import asyncio
import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from proof.forked_process import Forked
from support.free_port import free_port
from support.reference_server import Peer, eventually, serving
from support.serve_command import run, served
from tidewire.install_command import install_command
from tidewire_server import Server

ENDPOINTS = """
import asyncio
import multiprocessing
import time
from collections.abc import AsyncIterator
from tidewire_server import Server, Stream

server = Server(retry=0.01)


@server.endpoint
async def tick(n: int = 3, pause: float = 0.0) -> AsyncIterator[int]:
    "Count."
    for number in range(n):
        yield number
        await asyncio.sleep(pause)


@server.endpoint(concurrency_limit=None)
async def deaf(stream: Stream[str]) -> None:
    while True:
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            pass


@server.endpoint
async def beside() -> None:
    await asyncio.to_thread(time.sleep, 600)


@server.endpoint(concurrency_limit=None)
async def block() -> None:
    print("blocked", flush=True)
    while True:
        pass


@server.endpoint
def fork() -> int | None:
    child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
    child.start()
    child.terminate()
    child.join(10)
    ended = child.exitcode
    child.kill()
    return ended


@server.endpoint(concurrency_group="gpu")
def first() -> None: ...


@server.endpoint(concurrency_group="gpu", concurrency_limit=3)
def second() -> None: ...


not_a_server = 5
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("serve")
    (path / "mine.py").write_text(ENDPOINTS)
    (path / "two.py").write_text(
        "from tidewire_server import Server\nfirst = Server()\nsecond = Server()\nsame = first\n"
    )
    (path / "none.py").write_text("from tidewire_server import Server\n")
    (path / "groups.toml").write_text("[endpoints.first]\nconcurrency_limit = 2\n")
    return path


def run_to_exit(folder: Path, *arguments: str, **environment: str) -> tuple[int, str]:
    with run(folder, *arguments, **environment) as process:
        out, err = process.communicate(timeout=30)
    assert "Traceback" not in err
    return process.returncode, out + err


@pytest.mark.parametrize(
    ("tokens", "warned"),
    [({}, True), ({"TIDEWIRE_TOKENS": "ann:sesame"}, False)],
    ids=["no tokens", "tokens"],
)
def test_the_token_of_a_client_in_the_environment_is_reported_on_a_server_without_tokens(
    folder, tokens, warned
):
    with served(folder, "mine.py:server", TIDEWIRE_TOKEN="sesame", **tokens) as (process, _):
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=20)
    assert ("WARNING" in err) == warned
    assert ("TIDEWIRE_TOKEN has no effect on a server" in err) == warned
    assert ("set TIDEWIRE_TOKENS or use --token-file" in err) == warned
    assert "sesame" not in err


@pytest.mark.parametrize("target", ["mine.py", "mine"])
def test_the_only_server_of_a_file_needs_no_name(folder, target):
    code, shown = run_to_exit(folder, target, "--show-config")
    assert code == 0
    assert "the server's code" in next(line for line in shown.splitlines() if line.startswith("retry "))


def test_an_error_in_the_file_shows_only_the_frames_of_the_user(folder):
    (folder / "broken.py").write_text(
        "import json\n\n\ndef load():\n    return json.loads('{')\n\n\ntry:\n    load()\nexcept ValueError:\n    import helper\n"
    )
    (folder / "helper.py").write_text("import no_such_module\n")
    code, output = run_to_exit(folder, "broken.py")
    assert code == 1
    files = re.findall(r'File "([^"]+)"', output)
    assert [Path(file).name for file in files] == ["broken.py", "broken.py", "broken.py", "helper.py"]
    assert output.startswith("tidewire serve: cannot import broken.py:\n")
    assert output.endswith("ModuleNotFoundError: No module named 'no_such_module'\n")
    (folder / "syntax.py").write_text("def f(:\n")
    code, output = run_to_exit(folder, "syntax.py")
    assert code == 1
    assert re.findall(r'File "[^"]*?([^/"]+)", line (\d)', output) == [("syntax.py", "1")]
    assert output.endswith("SyntaxError: invalid syntax\n")


def test_each_job_is_one_line_of_the_log(folder):
    with served(folder, "mine.py", "--log-level", "info") as (process, peer):
        job = peer.start("tick", {"n": 2})
        eventually(lambda: peer.job(job)["status"] == "succeeded")
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=20)
    (line,) = err.splitlines()
    assert re.fullmatch(rf"INFO [\w.]+: job {job}: tick succeeded in [\d.e-]+ s", line)


@pytest.mark.heavy
def test_reload_restarts_the_server_when_a_python_file_changes(tmp_path):
    (tmp_path / "story.py").write_text(ENDPOINTS)
    with served(tmp_path, "story.py", "--reload", "--log", "sqlite:///jobs.db") as (process, peer):
        waiting = peer.start("tick", {"n": 100, "pause": 0.05})
        eventually(lambda: peer.job(waiting)["status"] == "running")
        (tmp_path / "port").unlink()
        # Python takes a file of the same second and the same size for unchanged, and uses its bytecode.
        (tmp_path / "story.py").write_text(ENDPOINTS.replace("async def tick", "async def ticktock"))
        eventually((tmp_path / "port").exists, within=30)
        with Peer(f"http://127.0.0.1:{int((tmp_path / 'port').read_text())}") as again:
            assert again.value("ticktock") == 2
            # The job is not awaited, and its endpoint no longer exists.
            eventually(lambda: again.job(waiting)["status"] == "failed")
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 0
    assert "tidewire serve: story.py changed; restarting\n" in err


@pytest.mark.skipif(
    signal.getsignal(signal.SIGHUP) is signal.SIG_IGN, reason="SIGHUP is ignored here, as by nohup"
)
@pytest.mark.heavy
def test_a_closed_terminal_ends_both_processes_of_a_server_with_reload(folder):
    with served(folder, "mine.py:server", "--reload") as (process, peer):
        process.send_signal(signal.SIGHUP)
        process.communicate(timeout=20)
        with pytest.raises(httpx2.ConnectError):
            peer.http.get("/readyz")
    assert process.returncode == 0


def test_a_tilde_in_a_path_setting_is_the_home_folder(folder, tmp_path):
    (tmp_path / "tokens.txt").write_text("me:s3cret\n")
    (tmp_path / "settings.toml").write_text('token_file = "~/tokens.txt"\nlog = "sqlite:///~/jobs.db"\n')
    home = {"HOME": str(tmp_path)}
    with served(folder, "mine.py", "--config", "~/settings.toml", **home) as (process, peer):
        assert peer.http.get("/v1").status_code == 401
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
    assert (tmp_path / "jobs.db").exists()


def test_a_function_that_swallows_cancellation_does_not_keep_the_process_alive(folder):
    with served(folder, "mine.py:server", "--shutdown-timeout", "0.1", "--cancel-timeout", "0.1") as (
        process,
        peer,
    ):
        job = peer.start("deaf")
        eventually(lambda: peer.job(job)["status"] == "running")
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=20)
    assert process.returncode == 0


@pytest.mark.heavy
def test_a_leftover_thread_does_not_keep_the_process_alive(folder):
    limits = ("--shutdown-timeout", "0.1", "--cancel-timeout", "0.1")
    with served(folder, "mine.py:server", *limits) as (process, peer):
        job = peer.start("beside")
        eventually(lambda: peer.job(job)["status"] == "running")
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=20)
        assert process.returncode == 0
        assert "threads still running at exit" in err


@pytest.mark.skipif(
    signal.getsignal(signal.SIGHUP) is signal.SIG_IGN, reason="SIGHUP is ignored here, as by nohup"
)
def test_sighup_is_logged_and_ignored(folder):
    with served(folder, "mine.py:server") as (process, peer):
        for _ in range(2):
            process.send_signal(signal.SIGHUP)
        assert peer.value("tick") == 2
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 0
    assert "SIGHUP ignored: this server reads its configuration only at startup" in err


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_signal_ends_a_server_whose_standard_error_cannot_be_written(folder, tmp_path):
    (out, stdout), full, port = os.pipe(), os.open("/dev/full", os.O_WRONLY), tmp_path / "port"
    arguments = ("mine.py:server", "--port", "0", "--port-file", str(port), "--shutdown-timeout", "0.1")
    with (
        Forked("tidewire_server", *arguments, cwd=folder, streams=(stdout, full)) as process,
        os.fdopen(out),
    ):
        eventually(port.exists, within=60)
        with Peer(f"http://127.0.0.1:{int(port.read_text())}") as peer:
            job = peer.start("tick", {"n": 1000, "pause": 0.05})
            eventually(lambda: peer.job(job)["status"] == "running")
        process.send_signal(signal.SIGTERM)
        # Python exits with 120 if it cannot flush a standard stream at its end.
        assert process.wait(30) in (0, 120)


def test_a_second_signal_ends_the_server_at_once(folder):
    with served(folder, "mine.py:server", "--shutdown-timeout", "60") as (process, peer):
        peer.start("tick", {"n": 1000, "pause": 0.05})
        process.send_signal(signal.SIGTERM)
        eventually(lambda: peer.http.get("/readyz").status_code == 503)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=10)
    assert process.returncode == 1


def test_a_second_signal_ends_a_server_with_a_blocked_event_loop(folder):
    with served(folder, "mine.py:server") as (process, peer):
        peer.start("block")
        assert process.stdout is not None
        eventually(lambda: "blocked" in process.stdout.readline())
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGTERM)
        process.communicate(timeout=10)
    assert process.returncode == 1


@pytest.mark.heavy
def test_one_signal_ends_a_server_with_a_blocked_event_loop_after_its_time_limit(folder):
    with served(folder, "mine.py:server", "--shutdown-timeout", "0") as (process, peer):
        peer.start("block")
        assert process.stdout is not None
        eventually(lambda: "blocked" in process.stdout.readline())
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=20)
    assert process.returncode == 1
    assert re.search(r"the event loop is blocked at \S+mine.py:\d+ in block; waiting up to 2 s", err)


def test_a_signal_ends_a_process_that_a_function_has_forked(folder):
    with served(folder, "mine.py:server") as (_, peer):
        assert peer.value("fork") == -signal.SIGTERM


def test_the_banner_shows_url_endpoints_and_settings_without_secrets(folder):
    environment = {"TIDEWIRE_TOKENS": "me:s3cret", "TIDEWIRE_OPERATOR_TOKENS": "s3cret-of-operators"}
    with served(folder, "mine.py:server", "--max-queue-size", "7", **environment) as (process, peer):
        assert peer.http.get("/v1").status_code == 401
        assert peer.http.get("/v1", headers={"authorization": "Bearer s3cret"}).status_code == 200
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=20)
    assert peer.url in out
    assert "1 at a time" in out
    assert "Count." in out
    assert "queue 7" in out
    assert "authentication" not in out
    assert "s3cret" not in out


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")
def test_a_banner_that_cannot_be_written_is_one_line_and_the_server_runs(folder, tmp_path):
    full, (errors, stderr) = os.open("/dev/full", os.O_WRONLY), os.pipe()
    port = tmp_path / "port"
    arguments = ("mine.py", "--port", "0", "--port-file", str(port))
    with (
        Forked("tidewire_server", *arguments, cwd=folder, streams=(full, stderr)) as process,
        os.fdopen(errors) as log,
    ):
        warning = next(line for line in log if "banner" in line)
        with Peer(f"http://127.0.0.1:{int(port.read_text())}") as peer:
            assert peer.http.get("/readyz").status_code == 200
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
        rest = log.read()
    assert "cannot be written to standard output: No space left on device" in warning
    assert "Traceback" not in rest


def test_a_file_configures_target_settings_and_endpoints(folder):
    (folder / "tidewire.toml").write_text(
        'target = "mine.py:server"\nheartbeat = 3\nretry = 2\n[endpoints.tick]\nconcurrency_limit = 5\n'
    )
    flags = ("--config", "tidewire.toml", "--heartbeat", "4")
    with served(folder, *flags, TIDEWIRE_RETRY="0.5", TIDEWIRE_HEARTBEAT="5") as (process, peer):
        assert peer.http.get("/v1").json()["heartbeat_ms"] == 4000
        process.send_signal(signal.SIGTERM)
        out, _ = process.communicate(timeout=20)
    assert "5 at a time" in out
    code, shown = run_to_exit(folder, *flags, "--show-config", TIDEWIRE_RETRY="0.5", TIDEWIRE_HEARTBEAT="5")
    assert code == 0
    rows = {line.split()[0]: line.split()[1:] for line in shown.splitlines()}
    assert rows["heartbeat"] == ["4", "--heartbeat"]
    assert rows["retry"] == ["0.5", "TIDEWIRE_RETRY"]
    assert rows["target"] == ["mine.py:server", "tidewire.toml:1"]
    assert rows["endpoints.tick.concurrency_limit"] == ["5", "tidewire.toml:5"]


def test_configuring_an_unknown_endpoint_exits_with_2(folder):
    (folder / "wrong.toml").write_text("\n[endpoints.tik]\nmax_queue_size = 1\n")
    code, output = run_to_exit(folder, "mine.py:server", "--config", "wrong.toml")
    assert code == 2
    assert "wrong.toml:2: endpoints: unknown name 'tik'; did you mean 'tick'?" in output


def test_show_config_names_settings_from_the_servers_code(folder):
    code, shown = run_to_exit(folder, "mine.py:server", "--show-config", TIDEWIRE_TOKENS="me:s3cret")
    assert code == 0
    assert "the server's code" in next(line for line in shown.splitlines() if line.startswith("retry "))
    assert "s3cret" not in shown


def test_a_port_in_use_prints_one_line_and_exits_with_1(folder):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        code, output = run_to_exit(folder, "mine.py:server", "--port", str(listener.getsockname()[1]))
    assert code == 1
    assert output.count("\n") == 1
    assert "cannot bind" in output


def test_server_run_exits_with_one_line_if_it_cannot_bind_or_open_its_log(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        with pytest.raises(SystemExit) as ended:
            Server().run(port=port)
        with pytest.raises(OSError, match=f"127.0.0.1:{port}"), Server().running(port=port):
            pass
    # Python prints a text argument of SystemExit and exits with 1.
    assert (
        ended.value.code
        == f"cannot bind to 127.0.0.1:{port}: Address already in use; use port=0 for any free port"
    )
    with pytest.raises(SystemExit, match="this path is a folder"):
        Server(log=f"sqlite:///{tmp_path}").run(port=0)


@pytest.mark.parametrize(
    ("options", "output"),
    [
        ({"host": "192.0.2.1"}, "Cannot assign requested address; no interface of this machine has that"),
        ({"host": "no such host"}, "^cannot bind to no such host:0: [^;]*$"),
        ({"port": 65536}, "^cannot bind to 127.0.0.1:65536: "),
        ({"port_file": "no/folder/port"}, "^cannot write the port file no/folder/port: No such file"),
        ({"port_file": "."}, r"^cannot write the port file \.: the path is a folder$"),
        ({"port_file": "x" * 300}, "^cannot write the port file x*: File name too long$"),
    ],
)
def test_startup_errors_name_cause_and_remedy(options, output):
    with pytest.raises(SystemExit, match=output):
        Server().run(**({"port": 0} | options))


def test_an_unwritable_port_file_prints_one_line_and_exits_with_1(folder):
    code, output = run_to_exit(folder, "mine.py:server", "--port", "0", "--port-file", "no/folder/port")
    assert (code, output.count("\n")) == (1, 1)


def test_a_file_that_runs_its_server_on_import_prints_how_to_guard_it(folder):
    (folder / "unguarded.py").write_text(
        "from tidewire_server import Server\nserver = Server()\nserver.run(port=0)\n"
    )
    code, output = run_to_exit(folder, "unguarded.py:server", "--port", "0")
    assert code == 1
    assert output.count("\n") == 1
    assert (
        'unguarded.py runs its server on import; move the call under `if __name__ == "__main__":`' in output
    )


def test_run_within_a_running_event_loop_raises_with_advice():
    async def run_within_event_loop():
        with pytest.raises(RuntimeError, match=r"with server\.running\(\)"):
            Server().run(port=0)

    asyncio.run(run_within_event_loop())


def test_an_unusable_log_prints_one_line_and_exits_with_1(folder, tmp_path):
    code, output = run_to_exit(folder, "mine.py:server", "--port", "0", "--log", f"sqlite:///{tmp_path}")
    assert (code, output) == (
        1,
        f"tidewire serve: log {tmp_path}: this path is a folder; use the path of a file in it\n",
    )


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        (["mine.py:other"], "'other' in mine.py is undefined"),
        (["mine.py:not_a_server"], "is of type int, not a tidewire_server.Server"),
        (["yours.py:server"], "file yours.py not found"),
        (["no_such_module:server"], "module 'no_such_module' not found"),
        (["."], ". is neither a Python file nor a module; pass a file such as app.py"),
        (["groups.toml"], "groups.toml is neither a Python file nor a module"),
        (["mine.py:a b"], "is not FILE.py, MODULE, FILE.py:SERVER or MODULE:SERVER"),
        (["two.py"], "two.py has 2 servers: first, second; name one of them, such as two.py:first"),
        (["none.py"], "none.py has no server; write `server = tidewire_server.Server()`"),
        (["--reload"], "--reload needs a target, such as tidewire serve mine.py --reload"),
        (["--model", "Qwen/Qwen3-0.6B"], "hf download Qwen/Qwen3-0.6B --local-dir Qwen3-0.6B"),
        (["mine.py:server", "--heartbeat", "0"], "--heartbeat: heartbeat = '0': must be a number from 0.001"),
        (["mine.py:server", "--config", "no.toml"], "cannot read no.toml"),
        (["mine.py:server", "--token", "s3cret"], "--token is not a flag, because other users can read"),
        (["mine.py:server", "--host", "0.0.0.0", "--port", "0"], "refusing to serve on 0.0.0.0:"),
        (
            ["mine.py:server", "--config", "groups.toml"],
            "concurrency_group 'gpu' has two different limits",
        ),
        (["mine.py:server", "--log-level", "loud"], "--log-level"),
        (["mine.py:server", "--log", "mysql://x"], "is not a valid log"),
        (["--model", "no/such/folder"], "folder no/such/folder not found"),
        (["--model", "x" * 300], f"--model: cannot read {'x' * 300}: File name too long"),
        (
            ["mine.py:server", "--model", "folder"],
            "--model: model applies only to the default server, not to the target mine.py:server; omit the target, or pass",
        ),
        (
            ["mine.py:server", "--device", "cpu", "--show-config"],
            "--device: device applies only to the default server",
        ),
    ],
)
def test_wrong_arguments_print_one_line_and_exit_with_2(folder, arguments, output):
    code, text = run_to_exit(folder, *arguments)
    assert code == 2
    assert output in text
    assert text.count("\n") == 1


@pytest.mark.heavy
@pytest.mark.parametrize(
    ("hidden", "arguments", "extra"), [("torch", [], "engine"), ("httptools", ["mine.py:server"], "server")]
)
def test_a_missing_extra_prints_how_to_install_it(folder, tmp_path, hidden, arguments, extra):
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.modules[{hidden!r}] = None\n")
    done = subprocess.run(
        [sys.executable, "-m", "tidewire_server", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert install_command(extra) in done.stderr
    assert "Traceback" not in done.stderr


def test_server_app_runs_under_another_asgi_server(folder):
    port = free_port()
    options = ["--port", str(port), "--log-level", "warning", "--http", "h11", "--loop", "asyncio"]
    with (
        Forked("uvicorn", "mine:server.app", *options, cwd=folder) as process,
        Peer(f"http://127.0.0.1:{port}") as peer,
    ):

        def is_ready() -> bool:
            try:
                return peer.http.get("/readyz").status_code == 200
            except OSError:
                return False
            except Exception as error:
                return "refused" not in str(error)

        eventually(is_ready, within=20)
        assert peer.value("tick") == 2
        process.send_signal(signal.SIGTERM)
        process.wait(20)


def test_a_server_can_be_restarted_in_the_same_process():
    server = Server()

    @server.endpoint
    def one() -> int:
        return 1

    for _ in range(2):
        with serving(server) as peer:
            assert peer.value("one") == 1


def test_a_running_server_refuses_new_endpoints_and_a_second_start():
    server = Server()

    def one() -> int:
        return 1

    with serving(server):
        with pytest.raises(RuntimeError, match="register all endpoints before"):
            server.endpoint(one)
        with pytest.raises(RuntimeError, match="is already running"), server.running():
            pass
        with pytest.raises(RuntimeError, match="is already running"):
            server.run(port=0)
    server.endpoint(one)
    with serving(server) as peer:
        assert peer.value("one") == 1
