"""Structure of the folders in src/: import direction, no cycles, unique names; typing-only imports count."""

import ast
from collections import Counter, defaultdict
from functools import cache
from graphlib import CycleError, TopologicalSorter

import pytest

from support.source_tree import PACKAGES, SRC, modules, nodes

MAX_MODULES = 16
"""Maximum number of modules in a folder; the suite's checks are exempt, with one module per area of the spec."""

ENGINE_PATH = ("engine", "step_scheduler", "step_runner", "postprocess")
"""Modules of the text engine that every token passes: schedule, run, postprocess. Features are modules next to them."""
MAX_ENGINE_PATH_LINES = 1000

MAX_MODULE_LINES = 650
MAX_CLASS_LINES = 350
MAX_CLASS_ATTRIBUTES = 16
"""Limits of the classes between a function's call and the log: the folder `job_log`, and the writer of an item."""

# Each place (a folder, or root modules) imports only from itself and from places further down in the list.
ORDER = {
    "tidewire": [
        {"__main__", "under_test", "conformance_adapter"},
        {"commands"},
        {"__init__"},
        {"sync"},
        {"blocking"},
        {"client"},
        {"logprobs", "mapping"},
        {"jobs"},
        {"testing"},
        {"http"},
        {"install_command"},
        {"inputs"},
        {"notebook"},
        {
            "options",
            "updates",
            "result_type",
            "errors",
            "hooks",
            "checkpoint",
            "terminal_escapes",
            "trace_context",
            "terminal",
        },
        {"following"},
        {"protocol"},
    ],
    "tidewire_server": [
        {"__main__", "commands"},
        {"__init__", "generation", "openai", "page", "script_endpoint"},
        {"model", "default_model"},
        {"server"},
        {"serving"},
        {"http"},
        {"jobs"},
        {"batching"},
        {"endpoints"},
        {"job_log"},
        {"store"},
        {
            "settings",
            "setting_errors",
            "errors",
            "metrics",
            "principals",
            "roles",
            "tracing",
            "user_code",
            "user_paths",
        },
    ],
    "tidewire_conformance": [
        {"__init__", "__main__", "cli", "pytest_plugin"},
        {"report"},
        {"clients"},
        {"checks", "event_streams"},
        {
            "runner",
            "announce_job_counts",
            "idle_stream",
            "registry",
            "session",
            "parse_option_values",
        },
        {"judging"},
        {"wire"},
        {"schema_violations"},
        {"compiled_schemas"},
        {"specification"},
    ],
}

FORMER_PATHS = {"tidewire.protocol.follower", "tidewire_server.model.recipe"}

EXCEPTIONS = {
    # The registry imports the package of the checks to find its modules, and names none of them.
    ("tidewire_conformance.registry", "tidewire_conformance.checks"),
    # Former import path.
    ("tidewire.protocol.follower", "tidewire.following.follower"),
}


@cache
def imports(package):
    """Map each module to the modules of the same package that it imports anywhere in its code."""
    known = modules(package)
    found = defaultdict(set)
    for name, path in known.items():
        for node in nodes(path):
            if isinstance(node, ast.Import):
                wanted = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                parts = [f"{node.module}.{alias.name}" for alias in node.names]
                wanted = [part if part in known else node.module for part in parts]
            else:
                continue
            found[name].update(one for one in wanted if one in known and one != name)
    return found


def place(module):
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def rank(package, module):
    """Return the index of the module's place in the import order of its package."""
    for index, places in enumerate(ORDER[package]):
        if place(module) in places:
            return index
    raise AssertionError(f"{module} is missing in ORDER; add it where its imports allow")


@pytest.mark.heavy
@pytest.mark.parametrize("package", PACKAGES)
def test_folder_imports_only_folders_below_it(package):
    wrong = [
        f"{importer} imports {imported}"
        for importer, wanted in imports(package).items()
        for imported in sorted(wanted)
        if place(importer) != place(imported)
        and rank(package, importer) > rank(package, imported)
        and (importer, imported) not in EXCEPTIONS
    ]
    assert wrong == []


@pytest.mark.parametrize("package", PACKAGES)
def test_every_folder_and_root_module_has_a_place(package):
    for module in modules(package):
        rank(package, module)
    places = set().union(*ORDER[package])
    assert places - {place(module) for module in modules(package)} == set(), (
        "ORDER lists places that no longer exist"
    )


@pytest.mark.parametrize("package", PACKAGES)
def test_import_cycles_are_absent(package):
    try:
        list(TopologicalSorter(imports(package)).static_order())
    except CycleError as error:
        pytest.fail(" → ".join(error.args[1]))


def test_document_folder_imports_only_strict_json_from_the_rest_of_the_protocol():
    outside = {
        imported
        for importer, wanted in imports("tidewire").items()
        if importer.startswith("tidewire.protocol.document")
        for imported in wanted
        if not imported.startswith("tidewire.protocol.document")
    }
    assert outside == {"tidewire.protocol.strict_json"}


@pytest.mark.parametrize("package", PACKAGES)
def test_number_of_modules_in_a_folder_is_limited(package):
    counts = Counter(
        path.parent.relative_to(SRC).as_posix()
        for path in modules(package).values()
        if path.stem != "__init__"
    )
    large = {
        folder: count
        for folder, count in counts.items()
        if count > MAX_MODULES and not folder.endswith("/checks")
    }
    assert large == {}


@pytest.mark.parametrize("package", PACKAGES)
def test_names_of_modules_and_classes_are_unique(package):
    names, classes = Counter(), Counter()
    for name, path in modules(package).items():
        if not path.stem.startswith("__") and name not in FORMER_PATHS:
            names[path.stem] += 1
        classes.update(node.name for node in nodes(path) if isinstance(node, ast.ClassDef))
    assert [name for name, count in names.items() if count > 1] == []
    assert [name for name, count in classes.items() if count > 1] == []


@pytest.mark.parametrize("package", PACKAGES)
def test_number_of_lines_of_a_module_is_limited(package):
    lines = {
        name: len(path.read_text(encoding="utf-8").splitlines()) for name, path in modules(package).items()
    }
    assert {name: count for name, count in lines.items() if count > MAX_MODULE_LINES} == {}


def attributes(class_node):
    """Return the names of a class's attributes: the names in `__slots__`, annotated fields, and what methods assign."""
    slots = [
        element.value
        for node in class_node.body
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", None) == "__slots__"
        for element in ast.walk(node.value)
        if isinstance(element, ast.Constant)
    ]
    fields = [node.target.id for node in class_node.body if isinstance(node, ast.AnnAssign)]
    assigned = [
        node.attr
        for node in ast.walk(class_node)
        if isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and getattr(node.value, "id", None) == "self"
    ]
    return {*slots, *fields, *assigned}


def test_size_of_a_class_of_the_log_writer_is_limited():
    classes = [
        node
        for name, path in modules("tidewire_server").items()
        if name.startswith("tidewire_server.job_log.") or name.endswith(".item_writer")
        for node in nodes(path)
        if isinstance(node, ast.ClassDef)
    ]
    sizes = {node.name: (node.end_lineno - node.lineno + 1, len(attributes(node))) for node in classes}
    assert sizes.keys() >= {"PendingEvents", "LogWriter", "ItemWriter"}
    large = {
        name: (lines, count)
        for name, (lines, count) in sizes.items()
        if lines > MAX_CLASS_LINES or count > MAX_CLASS_ATTRIBUTES
    }
    assert large == {}


def test_text_engines_path_of_a_token_is_short_enough_to_read_at_once():
    paths = [path for name, path in modules("tidewire_server").items() if name.split(".")[-1] in ENGINE_PATH]
    assert len(paths) == len(ENGINE_PATH)
    lines = {path.stem: len(path.read_text(encoding="utf-8").splitlines()) for path in paths}
    assert sum(lines.values()) <= MAX_ENGINE_PATH_LINES, lines
