"""Several processes do one thing together: words, tensors, and what is said when one of them is gone."""

import json
from pathlib import Path
from textwrap import dedent

import numpy as np
import pytest

from many import run, torchrun
from vitral.processes import Processes


@pytest.mark.parametrize(("count", "world", "parts"), [(8, 2, 1), (12, 2, 2), (12, 3, 1), (6, 2, 1), (48, 4, 3)])
def test_every_row_of_a_batch_has_one_process_and_each_has_as_many(count: int, world: int, parts: int) -> None:
    each = [Processes(rank, world).rows(count, parts) for rank in range(world)]
    assert sorted(np.concatenate(each)) == list(range(count))
    assert {len(rows) for rows in each} == {count // world}
    for rows in each:  # and of each part a share
        assert np.bincount(rows * parts // count, minlength=parts).tolist() == [count // world // parts] * parts
        mirrored = np.isin(count - 1 - rows, rows).sum()
        assert mirrored >= len(rows) - parts * (count // world // parts % 2) * 2


def test_alone_nothing_is_shared_and_nothing_changes() -> None:
    alone = Processes()
    assert alone.rows(5).tolist() == [0, 1, 2, 3, 4] and list(alone.deal("abc")) == ["a", "b", "c"]
    assert alone.gather("x") == ["x"] and alone.tell(3) == 3 and alone.collect([1, 2]) == [1, 2]
    alone.agree({"torch": "2"})
    with pytest.raises(FileNotFoundError), alone.together():  # as it is: nobody else needs to hear of it
        raise FileNotFoundError


TALK = """
    import json, sys, torch
    from pathlib import Path
    from vitral.errors import DataError
    from vitral.processes import join
    from vitral.run import Run

    def sentence(work):
        try:
            work()
        except Exception as error:
            return [type(error).__name__, str(error)]

    def fail_for(ranks):
        with processes.together():
            if processes.rank in ranks:
                raise DataError("There is no folder pictures.")

    def look_into_new_folders():
        for number in range(200):
            run = Run(Path(sys.argv[1], f"run-{number}"))
            run.check_shared(processes)
            run.check_free()  # the first has taken the folder away, or it is there: nothing between

    processes = join(timeout=60)
    rank = processes.rank
    said = {
        "gathered": processes.gather({"rank": rank}),
        "told": processes.tell(["a", None][rank > 0]),
        "decided": processes.decide(lambda: f"by {rank}"),
        "collected": processes.collect([number**2 for number in processes.deal(range(5))]),
        "mean": float(processes.average({"loss": torch.tensor(float(rank))})["loss"]),
        "one fails": sentence(lambda: fail_for([1])),
        "all fail": sentence(lambda: fail_for([0, 1])),
        "none fails": sentence(lambda: fail_for([])),
        "other": sentence(lambda: processes.agree({"torch": "2.13", "train.seed": rank})),
        "same": sentence(lambda: processes.agree({"torch": "2.13"})),
        "folders": sentence(look_into_new_folders),
        "clocks": processes.gather(processes.clock()),
        "stopping": processes.stopping,
    }
    processes.stop_asked = rank == 1
    processes.average({})
    said["stopping then"] = processes.stopping
    said["speaks"] = processes.speaks()
    Path(sys.argv[1], f"{rank}.json").write_text(json.dumps(said))
"""


@pytest.mark.slow
def test_they_tell_each_other_and_a_mistake_is_told_once(tmp_path: Path) -> None:
    (tmp_path / "talk.py").write_text(dedent(TALK))
    done = run(torchrun(tmp_path / "talk.py", tmp_path))
    assert done.returncode == 0, done.stderr
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    assert sorted([first.pop("speaks"), second.pop("speaks")]) == [False, True]
    assert first == second
    assert first["gathered"] == [{"rank": 0}, {"rank": 1}]
    assert (first["told"], first["decided"], first["collected"]) == ("a", "by 0", [0, 1, 4, 9, 16])
    assert first["mean"] == 0.5
    kind, words = first["one fails"]
    assert (
        kind == "DataError" and words.startswith("Process 1 of 2 (") and words.endswith("There is no folder pictures.")
    )
    assert first["all fail"] == ["DataError", "There is no folder pictures."]
    assert first["none fails"] is None and first["same"] is None
    assert "train.seed is 1 there, and 0 for the first" in first["other"][1] and "torch" not in first["other"][1]
    assert first["clocks"][0] == first["clocks"][1]
    assert (first["stopping"], first["stopping then"]) == (False, True)
