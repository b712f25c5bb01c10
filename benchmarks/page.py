"""Make results/README.md from the JSON files beside it: python -m benchmarks.page"""

import json
from pathlib import Path

from benchmarks import RESULTS
from gkn.study.beyond.pages import summary
from gkn.study.beyond.tables import SCALES
from gkn.study.work import Place


def load(name):
    path = RESULTS / f"{name}.json"
    return json.loads(path.read_text()) if path.exists() else None


def source(name, result):
    commit = result["commit"][:10] + "+" * result["commit"].endswith("+")
    what = f"`{result['command']}`, commit {commit}, torch {result['versions']['torch']}"
    return f"{what}, on {result['machine']} ([{name}.json]({name}.json))."


def measure(result):
    edge = 1 - (1 - 2 / result["size"]) ** 2
    lines = [
        "## Is our Darcy data the paper's?",
        "",
        f"{result['n']} samples at {result['size']} x {result['size']} beside the published set, whose points have u > 0 "
        f"even on the boundary (cell centres, interpolated); on ours u is exactly 0 there, at {edge:.1%} of the nodes. "
        "The last two columns leave those nodes out.",
        "",
        "| | ours | published | difference | standard error | ours, inside only | difference |",
        "|---|---|---|---|---|---|---|",
    ]
    for key, published in result["published"].items():
        ours, error, inside = result["ours"][key], result["standard_error"][key], result["ours"][f"{key}_inside"]
        lines.append(
            f"| {key.replace('_', ' of ')} | {ours:.5g} | {published:.5g} | {ours / published - 1:+.2%} "
            f"| {error / published:.2%} | {inside:.5g} | {inside / published - 1:+.2%} |"
        )
    return [*lines, "", source("darcy241", result), ""]


def solvers(cpu, gpu):
    lines = [
        "## How fast is solve_darcy?",
        "",
        "Two-phase coefficients of contrast 4, float64, checked against SuperLU first.",
        "",
    ]
    lines += ["| | one solve at 421 x 421 | |", "|---|---|---|"]
    for name, value in cpu["superlu_seconds"].items():
        lines.append(f"| SuperLU, {name} | {value:.2f} s | |")
    ratio, difference = cpu["ratio_to_best_superlu"], cpu["relative_difference"]
    lines.append(
        f"| solve_darcy, {cpu['threads']} cores | {cpu['solve_darcy_seconds']:.3f} s "
        f"| **{ratio:.1f} x** the best SuperLU, within {difference:.0e} |"
    )
    rate, difference = gpu["solves_per_second"], gpu["relative_difference"]
    lines.append(
        f"| solve_darcy, GPU, {gpu['batch']} together | {1000 / rate:.2f} ms "
        f"| **{rate:.0f} solves/s**, within {difference:.0e} |"
    )
    return [*lines, "", source("solvers-cpu", cpu), "", source("solvers-gpu", gpu), ""]


def datasets(cpu, gpu):
    lines = [
        "## How fast is a dataset made?",
        "",
        "| 1024 samples at 421 x 421 | made and written | checked | together |",
        "|---|---|---|---|",
    ]
    for result in (cpu, gpu):
        name = result["machine"].rpartition(", ")[2]
        made, checked, total = (result[f"{key}_seconds"] for key in ("made_and_written", "checked", "total"))
        lines.append(f"| {name} | {made:.0f} s | {checked:.0f} s | **{total:.0f} s** |")
    return [*lines, "", source("dataset-cpu", cpu), "", source("dataset-gpu", gpu), ""]


def sizes(row):
    return "-".join(str(size) for size in row["kernel"])


def text_of(cell):
    if "ms" not in cell:
        return "out of memory"
    return f"{cell['ms']:.{0 if cell['ms'] >= 100 else 1}f} ms, {cell['peak_gib']:.2f} GiB"


def training(gpu, cpu):
    lines = ["### One training step of the paper's network", ""]
    lines += [
        f"Width 64, T = 6, {gpu['graphs']} graphs of m = {gpu['m']}; forward, backward and Adam; median. PyG is `NNConv`.",
        "",
    ]
    lines += [
        "| kernel | degree | floor | ours, bf16 | recomputed | PyG, bf16 | PyG, fp32 | x fp32 | x bf16 | x floor | memory |"
    ]
    lines += ["|---|---|---|---|---|---|---|---|---|---|---|"]
    for row in sorted(gpu["rows"], key=lambda row: (-row["kernel"][1], row["r"])):
        ours, again, peer, full = (row[name] for name in ("ours, bf16", "ours, recomputed, bf16", "pyg, bf16", "pyg, fp32"))
        ratios = [f"{p['ms'] / ours['ms']:.1f}" if "ms" in p else "-" for p in (full, peer)]
        memory = (
            f"1/{full['peak_gib'] / ours['peak_gib']:.0f}, 1/{full['peak_gib'] / again['peak_gib']:.0f}"
            if "ms" in full
            else "-"
        )
        lines.append(
            f"| {sizes(row)} | {row['degree']:.0f} | {row['floor_bf16_ms']:.2f} ms | {text_of(ours)} "
            f"| {text_of(again)} | {text_of(peer)} | {text_of(full)} | {' | '.join(ratios)} "
            f"| {ours['ms'] / row['floor_bf16_ms']:.1f} | {memory} |"
        )
    lines += [
        "",
        "Memory: PyG's in fp32 over ours in bf16, kept and recomputed. Captured as one CUDA graph, without Python in the way:",
        "",
    ]
    lines += [
        "| kernel | degree | bf16 | captured | recomputed | captured | tf32 | PyG, tf32 | fp32 | PyG, fp32 |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for row in sorted(gpu["rows"], key=lambda row: (-row["kernel"][1], row["r"])):
        cells = (text_of(row[name]) for name in ("ours, tf32", "pyg, tf32", "ours, fp32", "pyg, fp32"))
        times = (
            f"{row[name][key]:.2f} ms" for name in ("ours, bf16", "ours, recomputed, bf16") for key in ("ms", "captured_ms")
        )
        lines.append(f"| {sizes(row)} | {row['degree']:.0f} | {' | '.join(times)} | {' | '.join(cells)} |")
    lines += ["", source("kernel-integral-gpu", gpu), ""]
    lines += [f"On {cpu['threads']} CPU cores, {cpu['graphs']} graphs, fp32; memory is how far the process grows:", ""]
    lines += ["| kernel | degree | ours | recomputed | PyG | times as fast | memory |", "|---|---|---|---|---|---|---|"]
    for row in sorted(cpu["rows"], key=lambda row: (-row["kernel"][1], row["r"])):
        ours, again, peer = (row[f"{name}, fp32"] for name in ("ours", "ours, recomputed", "pyg"))
        lines.append(
            f"| {sizes(row)} | {row['degree']:.0f} | {text_of(ours)} | {text_of(again)} | {text_of(peer)} "
            f"| {peer['ms'] / ours['ms']:.1f} | 1/{peer['peak_gib'] / ours['peak_gib']:.0f} |"
        )
    lines += ["", "Rows may have been measured one at a time (`--add`); the JSON has the commit of each. The last of them:", ""]
    return [*lines, source("kernel-integral-cpu", cpu), ""]


def full_grid(result):
    lines = [
        "### Exact evaluation on full grids",
        "",
        f"r = {result['r']}, width 64, T = 6, bf16, every point a node, search included.",
    ]
    lines += ["", "| kernel | grid | edges | time | peak |", "|---|---|---|---|---|"]
    for row in result["rows"]:
        for cell in row["cells"]:
            lines.append(
                f"| {sizes(row)} | {cell['size']} x {cell['size']} | {cell['edges']:,} "
                f"| {cell['seconds']:.2f} s | {cell['peak_gib']:.2f} GiB |"
            )
    slopes = "; ".join(
        f"{sizes(row)}: {row['slope']:.2f}, between the last two {row['last_slope']:.2f}" for row in result["rows"]
    )
    return [*lines, "", f"Slope of log time over log edges: {slopes}.", "", source("full-grid-gpu", result), ""]


def neighbors(cpu, gpu):
    lines = ["### Radius search", "", f"{cpu['points']:,} uniform points of the square.", ""]
    lines += ["| | backend | edges | time | peak |", "|---|---|---|---|---|"]
    for result in (cpu, gpu):
        for row in result["rows"]:
            name = result["machine"].rpartition(", ")[2]
            lines.append(
                f"| {name} | {row['backend']} | {row['edges']:,} | {row['seconds']:.2f} s | {row['peak_gib']:.2f} GiB |"
            )
    return [*lines, "", source("neighbors-cpu", cpu), "", source("neighbors-gpu", gpu), ""]


def smoothing(result):
    values, gradients = result["difference_of_values"], result["difference_of_gradients"]
    lines = ["## How much memory does smoothing take?", ""]
    lines.append(
        "One function on random points of the unit square and cube, smoothed by a Gaussian of a standard deviation, with its "
        "gradient. Sums over all neighbours, where there are at most 2^22 pairs of them, else by way of a grid; the two differ "
        f"by {values:.0e} (values) and {gradients:.0e} (gradients) of the largest."
    )
    lines += ["", "| points | dimension | width | peak memory | time |", "|---|---|---|---|---|"]
    for row in result["rows"]:
        memory, seconds = f"{row['peak_mib']:.0f} MiB", f"{row['seconds']:.2f} s"
        lines.append(f"| {row['points']:,} | {row['dim']} | {row['width']} | {memory} | {seconds} |")
    return [*lines, "", source("smoothing-cpu", result), ""]


def asked(gpu, cpu, grid):
    """Goals for the paper's setting (r = 0.25, kernel 512-1024) and for the full grid, with the measured values."""

    def paper(result):
        return next(row for row in result["rows"] if row["r"] == 0.25 and row["kernel"] == [512, 1024])

    row, here = paper(gpu), paper(cpu)
    ours, again, full, half = (row[name] for name in ("ours, bf16", "ours, recomputed, bf16", "pyg, fp32", "pyg, bf16"))
    mine, peer = here["ours, fp32"], here["pyg, fp32"]
    floor = row["floor_bf16_ms"]
    large = {tuple(r["kernel"]): (r["cells"][-1], r["last_slope"]) for r in grid["rows"]}
    (small, slope_small), (big, slope_big) = large[128, 256], large[512, 1024]
    rows = [
        ("H200, times PyG fp32", ">= 100", full["ms"] / ours["ms"], full["ms"] / ours["captured_ms"], lambda x: x >= 100),
        ("H200, times PyG bf16", ">= 10", half["ms"] / ours["ms"], half["ms"] / ours["captured_ms"], lambda x: x >= 10),
        ("H200, times the floor", "<= 3", ours["ms"] / floor, ours["captured_ms"] / floor, lambda x: x <= 3),
        ("H200, PyG's fp32 memory over ours", ">= 10", full["peak_gib"] / ours["peak_gib"], None, lambda x: x >= 10),
        ("the same, recomputed", ">= 50", full["peak_gib"] / again["peak_gib"], None, lambda x: x >= 50),
        (
            "time of recomputing over keeping",
            "<= 2",
            again["ms"] / ours["ms"],
            again["captured_ms"] / ours["captured_ms"],
            lambda x: x <= 2,
        ),
        ("2 CPU cores, times PyG fp32", ">= 10", peer["ms"] / mine["ms"], None, lambda x: x >= 10),
        ("2 CPU cores, PyG's memory over ours", ">= 10", peer["peak_gib"] / mine["peak_gib"], None, lambda x: x >= 10),
        ("421 x 421, kernel 512-1024, s", "< 30", big["seconds"], None, lambda x: x < 30),
        ("421 x 421, kernel 128-256, s", "< 5", small["seconds"], None, lambda x: x < 5),
        ("421 x 421, peak GiB", "< 8", max(big["peak_gib"], small["peak_gib"]), None, lambda x: x < 8),
        ("slope of time over edges, 241 to 421", "<= 1.05", max(slope_small, slope_big), None, lambda x: x <= 1.05),
    ]
    lines = ["### Asked and measured", "", "| | asked | measured | as a CUDA graph | reached |", "|---|---|---|---|---|"]
    for name, wanted, value, captured, good in rows:
        graph = "" if captured is None else f"{captured:.2g}"
        lines.append(f"| {name} | {wanted} | {value:.3g} | {graph} | {'yes' if good(value) else '**no**'} |")
    return [*lines, ""]


OPS = Path(__file__).parent.parent / "gkn" / "ops" / "README.md"
MARKS = "<!-- measured: made by python -m benchmarks.page -->", "<!-- end -->"


def operators():
    """The measured part of gkn/ops/README.md."""
    lines = []
    for section, names in (
        (asked, ["kernel-integral-gpu", "kernel-integral-cpu", "full-grid-gpu"]),
        (training, ["kernel-integral-gpu", "kernel-integral-cpu"]),
        (full_grid, ["full-grid-gpu"]),
        (neighbors, ["neighbors-cpu", "neighbors-gpu"]),
    ):
        results = [load(name) for name in names]
        if all(results):
            lines += section(*results)
    links = "\n".join(lines).replace("](kernel-", "](../../results/kernel-").replace("](full-", "](../../results/full-")
    text = OPS.read_text()
    before, after = text.index(MARKS[0]) + len(MARKS[0]), text.index(MARKS[1])
    OPS.write_text(text[:before] + "\n\n" + links.replace("](neighbors-", "](../../results/neighbors-") + "\n" + text[after:])
    print(OPS)


def trainings(result):
    """Cells of the paper by both recipes, and where the time goes."""
    cells = result["cells"]
    lines = ["## How good is a trained network?", ""]
    lines += ["Relative l2 error of 100 test functions, s = 241, r = .25, on m' sampled nodes, the paper's test.", ""]
    lines += [
        "| recipe | N | m | m' | seeds | test error | seed to seed | paper | seconds | GiB |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    for which, n, paper in (("paper", 100, "0.0687"), ("ours", 100, "0.0687"), ("ours", 1000, "0.0579 (m' = 200)")):
        rows = [cell for cell in cells.values() if (cell["recipe"], cell["N"]) == (which, n)]
        errors = [cell["test"]["mean"] for cell in rows]
        mean = sum(errors) / len(errors)
        spread = f"{min(errors):.4f} to {max(errors):.4f}" if len(errors) > 1 else ""
        m = rows[0]["rule"].split("m=")[1].split(",")[0]
        time, room = sum(cell["seconds"] for cell in rows) / len(rows), max(cell["peak_bytes"] for cell in rows) / 2**30
        name = f"{which}, {rows[0]['precision']}, {rows[0]['epochs']} epochs, a smoothed over {rows[0]['smoothing']:.2g}"
        said = [name, n, m, rows[0]["m_test"], len(rows), f"**{mean:.4f}**", spread, paper, f"{time:.0f}", f"{room:.1f}"]
        lines.append(f"| {' | '.join(map(str, said))} |")
    lines += ["", 'The last network, which is `gkn.pretrained("darcy")`, on all points of other resolutions:', ""]
    lines += ["| points | how | error | functions | seconds each |", "|---|---|---|---|---|"]
    for name, each in cells["ours-1000"]["elsewhere"].items():
        points, how = name.split(", ", 1)
        lines.append(f"| {points} | {how} | {each['mean']:.4f} | {each['functions']} | {each['seconds_each']:.3f} |")
    lines += ["", "Where the time goes, N = 100, l = 2, m = 200, 20 graphs a step, nodes drawn anew in every epoch:", ""]
    lines += ["| network | ms a step | in the network | elsewhere | edges/s |", "|---|---|---|---|---|"]
    for row in result["throughput"]:
        ms, alone = 1e3 * row["seconds_per_step"], 1e3 * row["network_seconds_per_step"]
        share, speed = row["share_not_in_network"], row["edges_per_second"]
        lines.append(f"| {row['recipe']}, {row['precision']} | {ms:.2f} | {alone:.2f} | {share:.1%} | {speed:.3g} |")
    return [*lines, "", source("training-gpu", result), ""]


def speed(cpu, gpu):
    """Times before and after the folders were made."""
    lines = ["## Speed before and after the folders were made", ""]
    lines += [
        "Milliseconds of a training step, medians; both trees took turns. The kernel integral is the paper's setting.",
        "",
    ]
    lines += ["| | before | after | ratio |", "|---|---|---|---|"]
    for machine, result in (("two cores", cpu), ("H200", gpu)):
        for name, row in result["rows"].items():
            lines.append(f"| {machine}, {name} | {row['before_ms']:.1f} | {row['after_ms']:.1f} | {row['ratio']:.2f} |")
    other = f"Before: commit {gpu['other_commit'][:10]}. The JSON has all rounds and the commit of each row."
    return [*lines, "", other, source("before-after-cpu", cpu), source("before-after-gpu", gpu), ""]


def between(name, text):
    """Write a text between two marks of the README."""
    path = RESULTS.parent / "README.md"
    whole = path.read_text()
    before, after = whole.index(f"<!-- {name} -->") + len(f"<!-- {name} -->"), whole.index(f"<!-- /{name} -->")
    path.write_text(f"{whole[:before]}\n\n{text}\n{whole[after:]}")
    print(path)


def demo(result):
    """Write the output of `make demo` into README.md."""
    printed = "\n".join(f"    {line.rstrip()}" for line in result["printed"])
    setup = f"Set-up {result['setup_seconds']:.0f} s. " if "setup_seconds" in result else ""
    times = f"{setup}Demo {result['demo_seconds']:.0f} s.\n{source('demo-cpu', result)}"
    between("demo", f"{printed}\n\n{times.replace('(demo-cpu', '(results/demo-cpu')}")


def main():
    lines = ["# Results", "", "Made from the JSON files here by `python -m benchmarks.page`; do not edit.", ""]
    for section, names in (
        (measure, ["darcy241"]),
        (solvers, ["solvers-cpu", "solvers-gpu"]),
        (datasets, ["dataset-cpu", "dataset-gpu"]),
        (smoothing, ["smoothing-cpu"]),
        (trainings, ["training-gpu"]),
        (speed, ["before-after-cpu", "before-after-gpu"]),
    ):
        results = [load(name) for name in names]
        if all(results):
            lines += section(*results)
    lines += ["## How fast is the network?", "", "See [the kernel integral](../gkn/ops/README.md#measured).", ""]
    (RESULTS / "README.md").write_text("\n".join(lines))
    operators()
    if load("demo-cpu"):
        demo(load("demo-cpu"))
    between("beyond", "\n".join(summary(Place(RESULTS / "beyond", RESULTS / "beyond"), SCALES["full"])) + "\n")
    print(RESULTS / "README.md")


if __name__ == "__main__":
    main()
