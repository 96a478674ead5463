"""Workers that share a queue: batches go to whoever is free, and what a lost worker had is asked again.

A pool is one generation of models. To take over new ones is to open another pool, and to let this one finish.
"""

import asyncio
import math
import traceback
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np

from vitral.deploy.serve.facts import ModelFacts
from vitral.deploy.serve.messages import Message
from vitral.deploy.serve.process import Worker, WorkerLost
from vitral.deploy.serve.questions import LATE, Answer, Item, Question, Queue, Refusal
from vitral.deploy.serve.settings import HANG_SECONDS, PER_BATCH, ServeSettings
from vitral.errors import VitralError

MOST_DEATHS = 2  # of workers that had one picture
BATCH_SHARE = 0.25  # of the deadline that a batch may take
REMEMBERED = 1_000  # pictures that ended workers
SLOWEST_START = 30.0  # seconds between two tries to start a worker that does not
SHORT_LIFE = 5.0  # seconds; after a worker that lived no longer the next one waits, each time longer
ENDS = Refusal(503, "The server ends. Ask again later.", retry_after=5)

Tell = Callable[[str], None]


class Pool:
    """Workers, their queue, and what they know. `Pool.open(settings, workers, threads, tell)` starts them."""

    def __init__(self, settings: ServeSettings, threads: int, workers: Sequence[Worker], tell: Tell) -> None:
        self.settings, self.threads, self.size, self.tell = settings, threads, len(workers), tell
        self.models = {facts.name: facts for facts in workers[0].models}
        self.queue = Queue(settings.queue)
        self.workers: set[Worker] = set()
        self.batches: Callable[[str, int, float], None] = _say_nothing  # is told of each: model, pictures, seconds
        self.when_changed: Callable[[], None] = lambda: None  # is called when what was loaded is not there any more
        self.restarts = 0
        self._idle: list[Worker] = []
        self._running: set[asyncio.Task[None]] = set()  # batches
        self._replacing: set[asyncio.Task[None]] = set()
        self._seconds = 0.0  # of a worker for a picture, the mean of late; 0: not known yet
        self._deaths: OrderedDict[str, int] = OrderedDict()  # of workers that had a picture, by its sha256
        self._short_lives = 0  # workers, one after the other, that ended soon
        self._looking: asyncio.Task[Worker] | None = None
        self._look_lock = asyncio.Lock()
        self._asked = 0  # pictures that workers have
        self._looks = 0  # requests for it that are here
        self._scheduled = self._ended = self._hurries = False
        for worker in workers:
            self._add(worker)

    def _add(self, worker: Worker) -> None:
        worker.when_lost = lambda: self._lost_idle(worker)
        self.workers.add(worker)
        self._idle.append(worker)

    def _lost_idle(self, worker: Worker) -> None:
        if worker in self._idle:  # else it has been given work in this very moment, which finds out
            self._idle.remove(worker)
            self._spawn(self._bury(worker), self._replacing)

    async def _bury(self, worker: Worker) -> None:
        await worker.end()
        self._lost(worker, "", [])

    @classmethod
    async def open(cls, settings: ServeSettings, workers: int, threads: int, tell: Tell) -> "Pool":
        """So many workers, all of which have loaded the models and answered."""
        tasks = [asyncio.create_task(Worker.start(settings, threads)) for _ in range(workers)]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        except BaseException:
            for task in tasks:
                task.cancel()
            started = await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.gather(*(one.end() for one in started if isinstance(one, Worker)))
            raise
        return cls(settings, threads, [task.result() for task in tasks], tell)

    async def measure(self, seconds: float) -> float:
        """Pictures a second of all workers together."""
        answers = await asyncio.gather(
            *(worker.ask({"kind": "measure", "seconds": seconds}) for worker in self.workers)
        )
        rate = sum(answer.head["rate"] for answer in answers)
        self._seconds = len(self.workers) / rate
        return rate

    async def measure_one(self, seconds: float, threads: int) -> float:
        """The same of one worker with so many threads, while the others rest."""
        one = self._idle[0]
        await one.ask({"kind": "threads", "threads": threads})
        answer = await one.ask({"kind": "measure", "seconds": seconds})
        await one.ask({"kind": "threads", "threads": self.threads})
        return answer.head["rate"]

    async def keep_one(self, threads: int) -> None:
        """End all workers but one, which has so many threads."""
        one, *others = self._idle
        await asyncio.gather(*(worker.end() for worker in others))
        await one.ask({"kind": "threads", "threads": threads})
        self.workers, self._idle, self.size, self.threads = {one}, [one], 1, threads

    async def ask(self, model: str, question: Question) -> list[Answer]:
        """The answers to a question; a Refusal where the queue is full, or the time is over."""
        self.check_room(len(question.items), question.expires)
        suspects = [item for item in question.items if self._deaths and self._suspect(item)]
        self.queue.put(model, question, suspects)
        self._schedule()
        timer = asyncio.get_running_loop().call_at(question.expires, question.expire)
        try:
            return await question.done
        finally:
            timer.cancel()

    def check_room(self, pictures: int = 1, expires: float = math.inf) -> None:
        """Refuse what could not be answered in time: now, and not after the client has waited."""
        if pictures > self.settings.queue:
            raise Refusal(413, f"{pictures:,} pictures at once are too many: {self.settings.queue:,} may wait here.")
        if not self.workers:
            raise Refusal(
                503, "All workers have ended, and new ones are being started. Ask again later.", retry_after=2
            )
        ahead = len(self.queue)
        wait = (ahead + pictures + self._asked / 2) * self._seconds / len(self.workers)
        late = ahead and asyncio.get_running_loop().time() + wait > expires
        if late or ahead + pictures > self.settings.queue:
            raise Refusal(
                429, "More is asked here than can be answered. Ask again later.", retry_after=max(1, math.ceil(wait))
            )

    def _schedule(self) -> None:
        """What comes in the same moment is one batch."""
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._scheduled = False
        while self._idle and (taken := self.queue.take(len(self.workers), self._most)):
            model, items = taken
            # The one that has just worked: what it needs is still near its core.
            run = self._spawn(self._run(self._idle.pop(), model, items), self._running)
            run.add_done_callback(partial(_refuse_if_cancelled, items))  # also where it had not begun

    @property
    def _most(self) -> int:
        """Pictures in a batch: so few that those behind it come to their turn in time."""
        fits = int(BATCH_SHARE * self.settings.deadline / self._seconds) if self._seconds else PER_BATCH
        return min(max(1, fits), PER_BATCH)

    def _spawn(self, work: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return task

    async def _run(self, worker: Worker, model: str, items: list[Item]) -> None:
        started_at = asyncio.get_running_loop().time()
        self._asked += len(items)
        kinds = "".join(item.kind for item in items)
        try:
            answer = await worker.ask(
                {"kind": "predict", "model": model, "kinds": kinds}, [item.content for item in items]
            )
            self._give(items, answer, self.models[model])
        except WorkerLost:
            self._lost(worker, model, items)
            return
        except VitralError as error:
            _refuse(items, Refusal(422, str(error)))
        except Exception:
            _refuse(items, Refusal(500, "A worker said what makes no sense; the log has the details."))
            await self._bury(worker)
            self.tell("".join(traceback.format_exc()).rstrip())
            return
        finally:
            self._asked -= len(items)
        seconds = asyncio.get_running_loop().time() - started_at
        self._seconds = 0.9 * self._seconds + 0.1 * seconds / len(items) if self._seconds else seconds / len(items)
        self.batches(model, len(items), seconds)
        self._idle.append(worker)
        self._dispatch()

    def _give(self, items: list[Item], answer: Message, facts: ModelFacts) -> None:
        values = np.frombuffer(answer.parts[0], np.float32).reshape(len(items), facts.outputs)
        distances = np.frombuffer(answer.parts[1], np.float32)
        for item, row, distance, error in zip(items, values, distances.tolist(), answer.head["errors"], strict=True):
            known = None if math.isnan(distance) else distance
            item.question.answer(item.place, Answer(row, known, error))
            if self._deaths:
                self._deaths.pop(item.name, None)  # it was not this one

    def _lost(self, worker: Worker, model: str, items: list[Item]) -> None:
        """What it had is asked again, each picture alone; one that has ended two workers is refused. That is known of
        the picture, and not of a request: who asks about it may have gone, as a worker that hangs is waited for."""
        self.workers.discard(worker)
        now = asyncio.get_running_loop().time()
        for name in {item.name for item in items}:
            self._deaths[name] = min(self._deaths.pop(name, 0) + 1, MOST_DEATHS if len(items) == 1 else MOST_DEATHS - 1)
        while len(self._deaths) > REMEMBERED:
            self._deaths.popitem(last=False)
        again, deadly = [], ""
        for item in items:
            if self._deaths[item.name] >= MOST_DEATHS:
                deadly = item.name
                item.question.refuse(_deadly(item.name))
            elif item.question.expires < now:
                item.question.refuse(LATE)
            else:
                item.question.started = False
                again.append(item)
        self.queue.put_back(model, again)
        if not self._ended:
            lived = now - worker.ready_at
            self._short_lives = self._short_lives + 1 if lived < SHORT_LIFE else 0
            wait = min(0.25 * 2**self._short_lives, SLOWEST_START) if self._short_lives else 0.0
            self._spawn(self._replace(wait), self._replacing)
        self._schedule()
        self.tell(f"A worker ended ({_how(worker)}), which had {len(items)} pictures; another one is being started.")
        if deadly:
            self.tell(f"A picture ended {MOST_DEATHS} workers, and is refused from now on: its sha256 is {deadly}.")

    def _suspect(self, item: Item) -> bool:
        """Whether a worker that had this picture ended; refused is what ended several."""
        deaths = self._deaths.get(item.name, 0)
        if deaths >= MOST_DEATHS:
            raise _deadly(item.name)
        return deaths > 0

    async def _replace(self, wait: float) -> None:
        """Another worker after so many seconds, tried again and again, more and more seldom."""
        await asyncio.sleep(wait)
        wait = max(wait, 0.5)
        while not self._ended:
            try:
                worker = await Worker.start(self.settings, self.threads)
            except Exception as error:
                self.tell(f"A worker could not be started: {error} It is tried again in {wait:g} s.")
                await asyncio.sleep(wait)
                wait = min(2 * wait, SLOWEST_START)
                continue
            if self._ended:
                return await worker.end()
            if worker.models != tuple(self.models.values()):
                self.tell("A new worker has found other models than the old ones: all take them over.")
                await worker.end()
                self.when_changed()
                await asyncio.sleep(SLOWEST_START)  # by then this pool has ended, or the others are no good
                continue
            self.restarts += 1
            self._add(worker)
            return self._dispatch()

    async def look(self, head: dict[str, Any], content: bytes, expires: float) -> Message:
        """Maps and the glass: answered one after the other by a worker of their own, so that they hold no answer up. It
        is started when somebody first asks."""
        self._looks += 1
        try:
            try:
                async with asyncio.timeout_at(expires):
                    await self._look_lock.acquire()
            except TimeoutError:
                raise LATE from None
            try:
                return await self._look(head, content, expires)
            except VitralError as error:
                raise Refusal(422, str(error)) from None
            finally:
                self._look_lock.release()
        finally:
            self._looks -= 1

    async def _look(self, head: dict[str, Any], content: bytes, expires: float) -> Message:
        was_there = self._looking is not None
        worker = await self._looking_worker()
        try:
            return await worker.ask(head, [content])
        except WorkerLost:
            self._looking = None
        # One that rested may have ended before it was asked.
        if was_there and not self._ended and asyncio.get_running_loop().time() < expires:
            worker = await self._looking_worker()
            with suppress(WorkerLost):
                return await worker.ask(head, [content])
            self._looking = None
        raise Refusal(503, "The worker that draws maps has ended. Ask again.", retry_after=2)

    async def _looking_worker(self) -> Worker:
        """The one that is there, or a new one."""
        done = self._looking if self._looking and self._looking.done() else None
        if done and (done.cancelled() or done.exception() or done.result().has_ended):
            self._looking = None
        if self._ended:
            raise ENDS
        if self._looking is None:
            self._looking = asyncio.create_task(self._start_looking())
        starting = self._looking
        try:
            return await asyncio.shield(starting)
        except asyncio.CancelledError:
            if starting.cancelled():
                raise ENDS from None
            raise
        except Exception as error:
            self._looking = None
            raise Refusal(503, f"The worker that draws maps could not be started: {error}", retry_after=2) from None

    async def _start_looking(self) -> Worker:
        """With the models that answer, and no others."""
        worker = await Worker.start(self.settings, 1)
        if worker.models != tuple(self.models.values()):
            await worker.end()
            self.when_changed()
            raise VitralError("There are other models now, which are being taken over. Ask again.")

        def bury() -> None:
            self._spawn(worker.end(), self._replacing)

        worker.when_lost = bury
        return worker

    def hurry(self) -> None:
        """Whatever is still asked: `finish` does not wait for it any more."""
        self._hurries = True

    async def finish(self) -> None:
        """Answer what is there, and end the workers."""
        until = asyncio.get_running_loop().time() + self.settings.deadline + HANG_SECONDS
        while self._is_busy and not self._hurries and asyncio.get_running_loop().time() < until:
            self._schedule()
            await asyncio.sleep(0.02)
        await self.end()

    @property
    def _is_busy(self) -> bool:
        return bool(self._running or self._looks or (len(self.queue) and self.workers))

    async def end(self) -> None:
        """End the workers at once."""
        self._ended = True
        self.queue.refuse_all(ENDS)
        tasks = [*self._running, *self._replacing, *([self._looking] if self._looking else [])]
        for task in tasks:
            task.cancel()
        ended = await asyncio.gather(*tasks, return_exceptions=True)
        looking = [one for one in ended if isinstance(one, Worker)]
        await asyncio.gather(*(worker.end() for worker in [*self.workers, *looking]))


def _say_nothing(model: str, pictures: int, seconds: float) -> None:
    pass


def _refuse(items: Sequence[Item], refusal: Refusal) -> None:
    for item in items:
        item.question.refuse(refusal)


def _refuse_if_cancelled(items: Sequence[Item], run: asyncio.Task[None]) -> None:
    if run.cancelled():
        _refuse(items, ENDS)


def _deadly(name: str) -> Refusal:
    return Refusal(
        422, f"This picture ended {MOST_DEATHS} workers, and is not asked about again. Its sha256 is {name}."
    )


def _how(worker: Worker) -> str:
    code = worker.process.returncode
    return f"signal {-code}" if code < 0 else f"exit code {code}"
