"""Every error of headrace can be caught by a name that is public, and is documented."""

from __future__ import annotations

from pathlib import Path

import headrace
from headrace.core import errors

ERRORS = Path(__file__).parents[2] / "docs" / "reference" / "errors.md"


def test_every_error_is_public_and_documented() -> None:
    classes = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, Exception)]
    assert len(classes) > 10
    documented = ERRORS.read_text()
    for one in classes:
        assert getattr(headrace.errors, one.__name__) is one
        assert issubclass(one, headrace.errors.HeadraceError)
        assert f"{one.__name__}`" in documented
        assert str(one("text alone")) == "text alone", "torch rebuilds a worker's exception from its text"
