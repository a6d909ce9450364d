"""Text becomes the token ids of the user's tokenizer: one by one, in batches, in any worker."""

from __future__ import annotations

import os
import pickle
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pytest
import torch
from pyarrow import parquet

import headrace
from headrace.core.errors import SampleError, StaleCacheError, UsageError
from headrace.transforms import Tokenize
from headrace.types import Ragged
from tests import programs
from tests.transforms.texts import END, MAKERS, Stepped, as_list, documents, expected_ids, of_tokenizers, rows_of

LIBRARIES = list(MAKERS)
CREWS = [
    {"num_workers": 2, "multiprocessing_context": "spawn"},
    {"num_workers": 2, "backend": "thread"},
    {"num_workers": 2, "multiprocessing_context": "fork"},
    {"num_workers": 0},
]


def crew_name(crew: dict[str, Any]) -> str:
    return "-".join(map(str, crew.values()))


@pytest.mark.quick
@pytest.mark.parametrize("library", LIBRARIES)
def test_ids_are_those_of_the_library(library: str) -> None:
    step = Tokenize(MAKERS[library]())
    for sample in documents():
        made = step(sample)
        assert made["input_ids"].tolist() == expected_ids(library, sample["text"])
        assert made["input_ids"].dtype == np.int64
        assert list(made) == ["number", "input_ids"]


@pytest.mark.quick
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_batch_has_the_ids_of_its_samples(library: str) -> None:
    step = Tokenize(MAKERS[library](), append=7, dtype="int32")
    texts = [sample["text"] for sample in documents()] + [""]
    made = step({"text": texts})["input_ids"]
    assert isinstance(made, Ragged)
    assert made.values.dtype == np.int32
    assert [made[at].tolist() for at in range(len(made))] == [step(text).tolist() for text in texts]
    assert made[len(texts) - 1].tolist() == [*expected_ids(library, ""), 7]


def test_a_batch_without_samples_has_no_ids() -> None:
    made = Tokenize(of_tokenizers())([])
    assert (len(made), made.values.shape, made.values.dtype) == (0, (0,), np.int64)


def test_arguments_decide_on_entries_and_special_tokens() -> None:
    step = Tokenize(of_tokenizers(), "body", to="ids", add_special_tokens=False, append=2, keep=True, dtype=np.int32)
    made = step({"body": "the cat"})
    assert made["body"] == "the cat"
    assert made["ids"].dtype == np.int32
    assert made["ids"].tolist() == [*expected_ids("tokenizers", "the cat", add_special_tokens=False), 2]


def test_ids_may_take_the_place_of_the_text() -> None:
    step = Tokenize(of_tokenizers(), to="text")
    assert step({"text": "the cat"})["text"].tolist() == expected_ids("tokenizers", "the cat")


def test_the_text_is_neither_cut_nor_padded_and_the_given_tokenizer_stays_as_it_was() -> None:
    tokenizer = of_tokenizers()
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=64)
    step = Tokenize(tokenizer)
    text = "the cat sat on a mat"
    assert step(text).tolist() == expected_ids("tokenizers", text)
    assert len(step(text)) > 4
    assert (tokenizer.truncation["max_length"], tokenizer.padding["length"]) == (4, 64)


@pytest.mark.quick(crew=CREWS[2])
@pytest.mark.parametrize("crew", CREWS, ids=crew_name)
@pytest.mark.parametrize("library", LIBRARIES)
def test_map_style_data_have_the_same_ids_in_all_workers(library: str, crew: dict[str, Any]) -> None:
    data = Stepped(Tokenize(MAKERS[library]()), documents())
    loader = headrace.DataLoader(data, batch_size=5, collate_fn=as_list, **crew)
    assert rows_of(loader) == [expected_ids(library, sample["text"]) for sample in documents()]


@pytest.mark.quick(library="tokenizers", crew=CREWS[2])
@pytest.mark.parametrize("batched", [False, True])
@pytest.mark.parametrize("crew", CREWS, ids=crew_name)
@pytest.mark.parametrize("library", LIBRARIES)
def test_staged_data_have_the_same_ids_in_all_workers(library: str, crew: dict[str, Any], batched: bool) -> None:
    data = headrace.Staged(documents()).map(Tokenize(MAKERS[library]()), batched=batched)
    loader = headrace.DataLoader(data, batch_size=5, **crew)
    assert rows_of(loader) == [expected_ids(library, sample["text"]) for sample in documents()]


@pytest.mark.quick(crew=CREWS[2])
@pytest.mark.parametrize("crew", CREWS, ids=crew_name)
def test_a_stream_has_the_same_ids_in_all_workers(crew: dict[str, Any], tmp_path: Path) -> None:
    parquet.write_table(pyarrow.Table.from_pylist(documents()), tmp_path / "texts.parquet")
    stream = headrace.open(tmp_path / "texts.parquet").stream().map(Tokenize(of_tokenizers()))
    loader = headrace.DataLoader(stream, batch_size=5, collate_fn=as_list, **crew)
    assert sorted(rows_of(loader)) == sorted(expected_ids("tokenizers", sample["text"]) for sample in documents())


@pytest.mark.quick
@pytest.mark.parametrize("batched", [False, True])
def test_a_cache_holds_the_ids_and_is_out_of_date_with_another_tokenizer(batched: bool, tmp_path: Path) -> None:
    texts = documents(40)

    def cached(step: Any) -> Any:
        return headrace.Staged(texts).map(step, batched=batched).cache(tmp_path / "ids")

    kept = cached(Tokenize(of_tokenizers(), dtype=np.int32))
    again = cached(Tokenize(of_tokenizers(), dtype=np.int32))
    assert [row.tolist() for row in (sample["input_ids"] for sample in again)] == [
        expected_ids("tokenizers", sample["text"]) for sample in texts
    ]
    assert {sample["input_ids"].dtype for sample in kept} == {np.dtype(np.int32)}

    other = of_tokenizers()
    other.add_tokens(["cat"])
    with pytest.raises(StaleCacheError):
        cached(Tokenize(other, dtype=np.int32))


@pytest.mark.quick
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_fingerprint_is_that_of_what_the_ids_depend_on(library: str) -> None:
    make = MAKERS[library]
    before = Tokenize(make()).fingerprint()
    assert Tokenize(make()).fingerprint() == before
    assert pickle.loads(pickle.dumps(Tokenize(make()))).fingerprint() == before
    for words in ({"append": 1}, {"to": "ids"}, {"dtype": "int32"}, {"add_special_tokens": False}, {"keep": True}):
        assert Tokenize(make(), **words).fingerprint() != before


def test_a_fingerprint_tells_one_encoding_of_tiktoken_from_another() -> None:
    tiktoken = pytest.importorskip("tiktoken")
    ranks = {bytes([byte]): byte for byte in range(256)}
    swapped = ranks | {b"a": ranks[b"b"], b"b": ranks[b"a"]}
    made = set()
    for pattern, given, special in ((".", ranks, {}), (".", swapped, {}), (r"\w", ranks, {}), (".", ranks, {END: 256})):
        encoding = tiktoken.Encoding("one", pat_str=pattern, mergeable_ranks=given, special_tokens=special)
        made.add(Tokenize(encoding).fingerprint())

    assert len(made) == 4


def test_a_fingerprint_does_not_tell_of_truncation_and_padding_which_are_not_used() -> None:
    tokenizer = of_tokenizers()
    before = Tokenize(tokenizer).fingerprint()
    tokenizer.enable_truncation(4)
    tokenizer.enable_padding(length=64)
    assert Tokenize(tokenizer).fingerprint() == before


def test_each_thread_has_a_tokenizer_of_its_own() -> None:
    step = Tokenize(of_tokenizers())
    owned = [step.encoder.own()]
    thread = threading.Thread(target=lambda: owned.append(step.encoder.own()))
    thread.start()
    thread.join()
    assert owned[0] is step.encoder.own()
    assert owned[1] is not owned[0]


FORKED = """
import os
import headrace
from headrace.transforms import Tokenize
from tests.transforms.texts import documents, expected_ids, of_tokenizers, rows_of

class Told:
    def __init__(self, step):
        self.step = step
    def __call__(self, batch):
        return {**self.step(batch), "told": [os.environ["TOKENIZERS_PARALLELISM"]] * len(batch["text"])}

tokenizer = of_tokenizers()
tokenizer.encode_batch(["the cat sat"] * 1000)  # brings up the pool of threads
data = headrace.Staged(documents()).map(Told(Tokenize(tokenizer)), batched=True)
batches = list(headrace.DataLoader(data, batch_size=5, num_workers=2, multiprocessing_context="fork"))
assert rows_of(batches) == [expected_ids("tokenizers", sample["text"]) for sample in documents()]
assert {value for batch in batches for value in batch["told"]} == {"false"}
assert os.environ.get("TOKENIZERS_PARALLELISM") == GIVEN
"""


@pytest.mark.quick
@pytest.mark.parametrize("given", ["false", "true", None])
def test_forked_workers_neither_wait_for_threads_of_their_parent_nor_warn(given: str | None) -> None:
    pytest.importorskip("tokenizers")
    env = {name: value for name, value in os.environ.items() if name != "TOKENIZERS_PARALLELISM"}
    if given is not None:
        env["TOKENIZERS_PARALLELISM"] = given

    done = programs.run(["-c", FORKED.replace("GIVEN", repr(given))], env=env, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")


class Told(Tokenize):
    """Tells beside the ids what its process has told the library."""

    def __call__(self, sample: Any) -> Any:
        return {**super().__call__(sample), "told": os.environ.get("TOKENIZERS_PARALLELISM")}


@pytest.mark.thorough
@pytest.mark.parametrize("given", [None, "true"])
def test_a_spawned_worker_uses_one_core(given: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TOKENIZERS_PARALLELISM", raising=False)
    if given is not None:
        monkeypatch.setenv("TOKENIZERS_PARALLELISM", given)

    data = Stepped(Told(of_tokenizers()), documents())
    # Those of headrace are forked from a server.
    loader = torch.utils.data.DataLoader(data, 5, num_workers=2, multiprocessing_context="spawn", collate_fn=as_list)
    assert {sample["told"] for batch in loader for sample in batch} == {"false"}
    assert data[0]["told"] == given


@pytest.mark.parametrize("value", [None, b"bytes", 3, ["the cat", None]])
@pytest.mark.quick
def test_what_is_no_text_is_a_bad_sample(value: object) -> None:
    with pytest.raises(SampleError, match=r"(?s)no text to tokenize.*Tokenize\(column='text'\).*expected: str"):
        Tokenize(of_tokenizers())({"text": value})


def test_a_bad_sample_can_be_skipped() -> None:
    samples = documents()
    samples[3] = {"text": None, "number": 3}
    data = headrace.Staged(samples).map(Tokenize(of_tokenizers()))
    loader = headrace.DataLoader(data, batch_size=5, on_error="skip")
    assert [number for batch in loader for number in batch["number"].tolist()] == [at for at in range(24) if at != 3]


def test_a_sample_without_the_entry_is_an_error_that_names_the_others() -> None:
    with pytest.raises(UsageError, match=r"(?s)no entry 'text'.*entries 'body', 'number'"):
        Tokenize(of_tokenizers())({"body": "the cat", "number": 1})


@pytest.mark.parametrize("given", ["gpt2", len])
@pytest.mark.quick
def test_what_is_no_tokenizer_is_refused(given: Any) -> None:
    with pytest.raises(UsageError, match=r"(?s)Tokenize\(tokenizer=\).*a tokenizers.Tokenizer, a tiktoken.Encoding"):
        Tokenize(given)


@pytest.mark.parametrize(
    "words", [{"append": -1}, {"append": 1.0}, {"append": True}, {"dtype": np.uint16}, {"dtype": "nosuch"}]
)
@pytest.mark.quick
def test_wrong_arguments_are_refused(words: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"(?s)wrong argument.*Tokenize\\({next(iter(words))}=\\)"):
        Tokenize(of_tokenizers(), **words)


def test_a_step_says_what_it_does() -> None:
    text = repr(Tokenize(of_tokenizers(), append=2))
    assert text == "Tokenize(tokenizers.Tokenizer, column='text', to='input_ids', append=2)"
