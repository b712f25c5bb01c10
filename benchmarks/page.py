"""Make results/README.md from the JSON files beside it: python -m benchmarks.page"""

import json

from benchmarks import RESULTS


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


def main():
    lines = ["# Results", "", "Made from the JSON files here by `python -m benchmarks.page`; do not edit.", ""]
    for section, names in (
        (measure, ["darcy241"]),
        (solvers, ["solvers-cpu", "solvers-gpu"]),
        (datasets, ["dataset-cpu", "dataset-gpu"]),
    ):
        results = [load(name) for name in names]
        if all(results):
            lines += section(*results)
    (RESULTS / "README.md").write_text("\n".join(lines))
    print(RESULTS / "README.md")


if __name__ == "__main__":
    main()
