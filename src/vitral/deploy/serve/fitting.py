"""How many workers of how many threads: what answers most on this machine, found out by asking."""

from vitral.data.threads import cores
from vitral.deploy.serve.pool import Pool, Tell
from vitral.deploy.serve.process import WorkerLost
from vitral.deploy.serve.settings import ServeSettings
from vitral.errors import VitralError

MOST_WORKERS = 8  # unless more are asked for: each holds the models in memory
SECONDS = 1.5  # that each way is measured


async def open_fitting(settings: ServeSettings, tell: Tell) -> Pool:
    """The pool that the settings ask for, or the faster of two: many workers that take a core each, or one that takes
    them all."""
    available = cores()
    workers = settings.workers or (
        max(1, available // settings.threads) if settings.threads else min(available, MOST_WORKERS)
    )
    threads = settings.threads or max(1, available // workers)
    pool = await Pool.open(settings, workers, threads, tell)
    if settings.workers and settings.threads:
        tell(f"{_words(workers, threads)} answer, as asked for.")
        return pool
    try:
        rate = await pool.measure(SECONDS)
        told = f"{_words(workers, threads)}: {rate:,.0f} pictures a second"
        if workers > 1 and not (settings.workers or settings.threads):
            alone = await pool.measure_one(SECONDS, available)
            told += f"; {_words(1, available)}: {alone:,.0f}"
            if alone > rate:
                await pool.keep_one(available)
    except WorkerLost:
        await pool.end()
        sentence = "A worker ended while it was measured. Where memory is short, --workers has fewer of them."
        raise VitralError(sentence) from None
    except BaseException:
        await pool.end()
        raise
    tell(f"Measured: {told}. {_words(pool.size, pool.threads)} answer.")
    return pool


def _words(workers: int, threads: int) -> str:
    return f"{workers} worker{'s' * (workers != 1)} of {threads} thread{'s' * (threads != 1)}"
