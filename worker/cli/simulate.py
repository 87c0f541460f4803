"""scorelane simulate"""

from typing import Final

import click

SCENARIOS: Final = ("steady", "burst", "slow5", "slow20", "burst-slow20", "hang", "errors", "pause")


@click.command()
@click.option(
    "--load", "loads", type=click.FloatRange(0.01, 20.0), multiple=True, help="Part of the primary's capacity."
)
@click.option("--scenario", type=click.Choice(SCENARIOS), default="steady", show_default=True, help="Trouble half-way.")
@click.option("--seconds", type=click.FloatRange(0.1, 600.0), default=4.0, show_default=True, help="Simulated time.")
@click.option("--budget-ms", type=click.FloatRange(1.0), default=50.0, show_default=True)
@click.option("--fixed-ms", type=click.FloatRange(0.001), default=1.0, show_default=True, help="Time of a batch ...")
@click.option(
    "--row-us", type=click.FloatRange(0.0), default=10.0, show_default=True, help="... and of each row in it."
)
@click.option("--max-batch", type=click.IntRange(1), default=256, show_default=True)
@click.option("--seed", type=int, default=0, show_default=True)
def simulate(
    loads: tuple[float, ...],
    scenario: str,
    seconds: float,
    budget_ms: float,
    fixed_ms: float,
    row_us: float,
    max_batch: int,
    seed: int,
) -> int:
    """Compare batching rules under the same arrivals, in simulated time: rows late or never answered, and p99.

    The worker's own rule, with and without its fallback, against Triton's static timer and BentoML's CORK.
    Deterministic for a seed.
    """
    from rich import box
    from rich.console import Console
    from rich.table import Table

    from worker.simulation import RULES
    from worker.simulation import simulate as run
    from worker.world import Scenario, miss_ratio

    capacity = max_batch / (fixed_ms / 1e3 + max_batch * row_us / 1e6)
    table = Table(box=box.SIMPLE, title=f"{scenario}: missed deadlines and p99, capacity {capacity:,.0f} events/s")
    table.add_column("load", justify="right")
    for name in RULES:
        table.add_column(name, justify="right", no_wrap=True)
    for load in loads or (0.3, 0.6, 0.8, 0.9, 0.95, 1.1, 1.5):
        world = Scenario(
            seconds=seconds,
            rate=load * capacity,
            budget_s=budget_ms / 1e3,
            max_batch=max_batch,
            fixed_s=fixed_ms / 1e3,
            row_s=row_us / 1e6,
            seed=seed,
            **_trouble(scenario, seconds),  # type: ignore[arg-type]
        )
        cells = []
        for make in RULES.values():
            _, outcome = run(world, make)
            p99 = outcome.latency(0.99)
            cells.append(f"{miss_ratio(outcome):.3%}\n" + (f"{p99 * 1e3:.1f} ms" if p99 < 1e9 else "never"))
        table.add_row(f"{load:.0%}", *cells)
    Console(soft_wrap=True).print(table)
    return 0


def _trouble(scenario: str, seconds: float) -> dict[str, object]:
    """The trouble of a named scenario, over the second quarter of the time."""
    from worker.world import Fault

    start, stop = seconds / 4, seconds / 2
    burst = ((start, stop, 10.0),)
    troubles: dict[str, dict[str, object]] = {
        "steady": {},
        "burst": {"bursts": burst},
        "slow5": {"faults": (Fault("slow", start, stop, 5.0),)},
        "slow20": {"faults": (Fault("slow", start, stop, 20.0),)},
        "burst-slow20": {"bursts": burst, "faults": (Fault("slow", start, stop, 20.0),)},
        "hang": {"faults": (Fault("hang", start, stop),)},
        "errors": {"faults": (Fault("error", start, stop),)},
        "pause": {"pauses": ((start, stop),)},
    }
    return troubles[scenario]
