"""Tables of the text engine, on a CPU, on a GPU and in front of other engines."""

import json

from tables import HERE, measured_with, table, versions


def engine_cpu() -> str:
    result = json.loads((HERE / "results/engine_cpu.json").read_text())
    peers = list(result["rows"][0]["ratios"])
    engines = list(result["rows"][0]["microseconds"])
    head = ["model, float32", "requests", *(f"{name}, µs per token" for name in engines)]
    head += [f"{peer} / tidewire (target)" for peer in peers]
    rows = [
        [
            row["model"],
            str(row["requests"]),
            *(f"{row['microseconds'][name]:,.0f}" for name in engines),
            *(f"{row['ratios'][peer]:.2f} ({row['targets'][peer]})" for peer in peers),
        ]
        for row in result["rows"]
    ]
    met = sum(row["ratios"][peer] >= row["targets"][peer] for row in result["rows"] for peer in peers)
    groups = sorted({group for row in result["rows"] for group in row["profile"]})
    share = []
    for row in result["rows"]:
        operators = sum(row["profile"].values())
        # The profiler measures elapsed time. On a busy machine, the operators can exceed the CPU time.
        whole = max(operators, row["microseconds"]["tidewire"])
        parts = [*(row["profile"].get(group, 0) for group in groups), whole - operators]
        share.append([row["model"], str(row["requests"]), *(f"{part / whole:.0%}" for part in parts)])
    return (
        f"{table(head, rows)}\n\n"
        f"{met} of {len(peers) * len(result['rows'])} targets are met. The next table shows how the CPU time of the engine is divided:\n\n"
        f"{table(['model', 'requests', *groups, 'Python'], share)}\n\n"
        f"The numbers are medians. All engines returned the same tokens. The numbers were measured with Python {result['python']} on one thread, "
        f"using {versions(result['versions'])}.\n"
    )


def engine_sampling() -> str:
    result = json.loads((HERE / "results/engine_sampling.json").read_text())
    models = result["models"]
    head = [
        "share of a step, %",
        *(f"vocabulary {one['vocabulary']:,} ({one['step_ms']:.1f} ms)" for one in models),
        "target",
    ]
    rows = [
        [name, *(f"{one['shares'][name]:.1f}" for one in models), str(result["bars"].get(name, ""))]
        for name in models[0]["shares"]
    ]
    return f"{table(head, rows)}\n\nThe numbers are medians, {measured_with(result)}"


def engine_gpu() -> str:
    result = json.loads((HERE / "results/engine_gpu.json").read_text())
    settings = list(result["rows"][0]["ms"])
    rows = [
        [
            f"{row['model']}, {row['kind']}",
            str(row["batch"]),
            f"{row['ms'][settings[0]]:.2f}",
            *(f"{row['shares'][one]:+.1f} %" for one in settings[1:]),
        ]
        for row in result["rows"]
    ]
    targets = ", ".join(
        f"{one['what']} {one['percent']:.1f} % ({one['target']} %)" for one in result["verdicts"]
    )
    errors = ", ".join(
        f"{name} {one['tidewire']:.4f} and {one['transformers']:.4f}"
        for name, one in result["errors"].items()
    )
    used = versions(result["versions"])
    return (
        f"{table(['step', 'requests', f'{settings[0]}, ms', *settings[1:]], rows)}\n\n"
        f"Results and targets: {targets}. Largest errors of a log-probability in nats, of tidewire and of transformers:\n"
        f"{errors}. Measured on {result['device']}, which copies {result['bandwidth'] / 1e12:.2f} TB/s, using {used}."
    )


def upstream() -> str:
    result = json.loads((HERE / "results/upstream.json").read_text())
    rows = [
        [
            row["engine"],
            str(row["streams"]),
            f"{row['alone']:,.0f}",
            f"{row['through']:,.0f}",
            f"{row['overhead']:+.1f} %",
            f"{result['bar']:g} %",
        ]
        for row in result["rows"]
    ]
    head = ["engine", "streams", "alone, tokens/s", "through the server, tokens/s", "overhead", "target"]
    return f"{table(head, rows)}\n\nThe numbers are medians of {result['rounds']} rounds, {measured_with(result)}"


def engine_http() -> str:
    result = json.loads((HERE / "results/engine_http.json").read_text())
    rows = [
        [
            str(row["top"]),
            f"{row['tokens_per_second']:,.0f}",
            f"{row['cpu_micros_per_token']:.0f}",
            f"{row['cpu_tax']:.0f} %",
            f"{row['time_tax']:.0f} %",
            f"{result['bars'][str(row['top'])]} %" if row["top"] else "",
            f"{row['bytes_per_token']:.0f}",
        ]
        for row in result["rows"]
    ]
    head = ["top_logprobs", "tokens/s", "CPU, µs/token", "more CPU", "more time", "target", "bytes/token"]
    return f"{table(head, rows)}\n\nThe numbers are medians of {result['rounds']} rounds, {measured_with(result)}"


def engine_host() -> str:
    result = json.loads((HERE / "results/engine_host.json").read_text())
    rows = [
        [
            str(row["streams"]),
            str(row["top"]),
            f"{row['micros_per_token']:.1f}",
            f"{row['bytes_per_token']:.0f}",
        ]
        for row in result["rows"]
    ]
    return (
        f"{table(['streams', 'top_logprobs', 'CPU, µs/token', 'bytes/token'], rows)}\n\n"
        f"The numbers are medians of {result['rounds']} rounds, {measured_with(result)}"
    )


def engine_restart() -> str:
    result = json.loads((HERE / "results/engine_restart.json").read_text())
    sizes = {(row["top"], row["on_restart"]): row["bytes_per_token"] for row in result["rows"]}
    modes = list(dict.fromkeys(mode for _, mode in sizes))
    rows = [
        [str(top), *(f"{sizes[top, mode]:.0f}" for mode in modes)]
        for top in dict.fromkeys(top for top, _ in sizes)
    ]
    head = ["top_logprobs", *(f"{mode}, bytes/token" for mode in modes)]
    return f"{table(head, rows)}\n\nThe numbers are medians of {result['rounds']} rounds, {measured_with(result)}"
