"""What steps raise while a cache is built comes through, from any process, with the step and the sample."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest

from headrace.core.errors import UsageError
from headrace.data.staged import build, staged
from tests.data.staged import building
from tests.data.staged.building import COUNT, GATE


class Odd(Exception):
    """Cannot be pickled, and not be made from its text."""

    def __init__(self, one: int, other: Any) -> None:
        super().__init__(f"odd {one}")
        self.other = other


RAISED: dict[str, tuple[Callable[[], BaseException], type[BaseException]]] = {
    "its own": (lambda: Odd(3, lambda: None), Odd),
    "a key": (lambda: KeyError("name"), KeyError),
    "a file": (lambda: FileNotFoundError(2, "No such file", "odd.jpg"), FileNotFoundError),
    "a decode error": (lambda: UnicodeDecodeError("utf-8", b"x", 0, 1, "odd"), UnicodeDecodeError),
    "a web error": (lambda: HTTPError("http://odd", 404, "odd", {}, None), OSError),  # type: ignore[arg-type]
    "ours": (lambda: UsageError("odd"), UsageError),
    "a stop": (lambda: StopIteration("odd"), Exception),
}


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("what", RAISED)
@pytest.mark.parametrize(("where", "number"), [("folder", GATE), ("memory", GATE), ("folder", COUNT - 1)])
def test_what_a_step_raises_keeps_its_type_its_text_and_the_sample(
    tmp_path: Path, workers: int, what: str, where: str, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name in ((build, "plan_work"), (staged, "plan_work"), (build, "cores"), (build, "ALONE")):
        monkeypatch.setattr(module, name, getattr(module, name))
    building.small_pieces(workers, crowd=workers > 1)
    make, kind = RAISED[what]
    kinds = (kind, RuntimeError) if workers > 1 else kind  # torch's form of what cannot be made from its text

    def failing(one: Any) -> Any:
        if one["id"] == number:
            raise make()
        return one

    before = building.children()
    with pytest.raises(kinds) as caught:
        building.Staged(building.source(), building.step(failing, version="1"),
                        cache=tmp_path / "c" if where == "folder" else "memory")  # fmt: skip
    text = f"{caught.value} {getattr(caught.value, '__notes__', '')}"
    assert isinstance(caught.value, kind) or (workers > 1 and what in ("its own", "a decode error", "a web error"))
    assert "'failing'" in text
    assert f"sample {number}" in text
    assert "name" in text if what == "a key" else "odd" in text
    assert building.children() == before
