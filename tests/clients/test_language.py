"""Tokenizers and chat templates of transformers, in the loader's workers."""

from __future__ import annotations

import importlib.util
import pickle
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
from headrace.core.errors import SampleError, StaleCacheError, UsageError
from headrace.transforms import ChatTemplate, Tokenize
from headrace.types import Ragged
from tests import programs
from tests.transforms.texts import Stepped, as_list, documents, of_tokenizers, rows_of

pytestmark = [
    pytest.mark.clients,
    pytest.mark.timeout(120),
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.skipif(
        importlib.util.find_spec("transformers") is None,
        reason="transformers is not installed: `make test-clients` installs it",
    ),
]

CREWS = [
    {"num_workers": 0},
    {"num_workers": 2, "multiprocessing_context": "fork"},
    {"num_workers": 2, "multiprocessing_context": "spawn"},
    {"num_workers": 2, "backend": "thread"},
]
TEXT = "the cat sat on a mat"
UNMARKED = "{% for turn in messages %}{{ turn.role }} {{ turn.content }}\n{% endfor %}"
MARKED = (
    "{% for tool in tools or [] %}tool {{ tool.function.name }}\n{% endfor %}"
    "{% for turn in messages %}{{ opening or 'the' }} {{ turn.role }} "
    "{% if turn.role == 'assistant' %}{% generation %}{{ turn.content }}<end>{% endgeneration %}"
    "{% else %}{{ turn.content }}{% endif %}\n{% endfor %}"
)


def crew_name(crew: dict[str, Any]) -> str:
    return "-".join(map(str, crew.values()))


def fast(template: str | None = None) -> Any:
    """A tokenizer in Rust, which knows where in the text its tokens lie."""
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=of_tokenizers(),
        unk_token="<unk>",
        eos_token="<end>",
        pad_token="<end>",
        chat_template=template,
    )


def slow() -> Any:
    """A tokenizer in Python, in whose vocabulary each character is a token."""
    from transformers import PreTrainedTokenizer

    class Characters(PreTrainedTokenizer):
        @property
        def vocab_size(self) -> int:
            return 128

        def get_vocab(self) -> dict[str, int]:
            return {chr(at): at for at in range(128)}

        def _tokenize(self, text: str, **words: Any) -> list[str]:
            return list(text)

        def _convert_token_to_id(self, token: str) -> int:
            return ord(token)

        def _convert_id_to_token(self, index: int) -> str:
            return chr(index)

    return Characters(chat_template=MARKED, pad_token="~")


def conversations() -> list[dict[str, Any]]:
    """One to three pairs of turns each."""
    texts = [sample["text"] for sample in documents(48)]
    samples = []
    for at in range(12):
        messages = []
        for turn in range(at % 3 + 1):
            messages.append({"role": "user", "content": texts[4 * at + turn]})
            messages.append({"role": "assistant", "content": texts[47 - at - turn]})
        samples.append({"number": at, "messages": messages})

    return samples


def said_by_assistant(messages: list[dict[str, str]]) -> str:
    return "".join(turn["content"] + "<end>" for turn in messages if turn["role"] == "assistant")


@pytest.mark.parametrize("make", [fast, slow])
def test_ids_are_those_of_the_tokenizer(make: Any) -> None:
    step = Tokenize(make())
    texts = [sample["text"] for sample in documents()]
    expected = [make()(text)["input_ids"] for text in texts]
    assert [step(text).tolist() for text in texts] == expected
    batch = step(texts)
    assert isinstance(batch, Ragged)
    assert [batch[at].tolist() for at in range(len(batch))] == expected


def test_special_tokens_are_left_out_where_that_is_asked_for() -> None:
    expected = fast()(TEXT, add_special_tokens=False)["input_ids"]
    assert Tokenize(fast(), add_special_tokens=False, append=2)(TEXT).tolist() == [*expected, 2]


def test_a_tokenizer_that_is_changed_by_others_all_the_time_is_copied() -> None:
    """Where it is shared, a thread that encodes fails: "Already borrowed"."""
    tokenizer = fast()
    step = Tokenize(tokenizer)
    expected = step(TEXT).tolist()
    errors: list[Exception] = []
    over = threading.Event()

    def change() -> None:
        while not over.is_set():
            tokenizer([TEXT] * 3, padding="max_length", truncation=True, max_length=4)

    def encode() -> None:
        try:
            for _ in range(200):
                assert [row.tolist() for row in map(step([TEXT] * 9).__getitem__, range(9))] == [expected] * 9
        except Exception as error:  # noqa: BLE001 - shown below
            errors.append(error)

    changing = threading.Thread(target=change)
    encoding = [threading.Thread(target=encode) for _ in range(3)]
    for thread in (changing, *encoding):
        thread.start()
    for thread in encoding:
        thread.join()
    over.set()
    changing.join()
    assert errors == []


@pytest.mark.parametrize("crew", CREWS, ids=crew_name)
@pytest.mark.parametrize("batched", [False, True])
def test_ids_are_the_same_in_all_workers(crew: dict[str, Any], batched: bool) -> None:
    data = headrace.Staged(documents()).map(Tokenize(fast()), batched=batched)
    rows = rows_of(headrace.DataLoader(data, batch_size=5, **crew))
    assert rows == [fast()(sample["text"])["input_ids"] for sample in documents()]


@pytest.mark.parametrize("make", [fast, slow])
def test_a_fingerprint_is_that_of_what_the_ids_depend_on(make: Any) -> None:
    tokenizer = make()
    before = Tokenize(tokenizer).fingerprint()
    tokenizer([TEXT, "the cat"], padding=True, truncation=True, max_length=4)
    assert Tokenize(tokenizer).fingerprint() == before == Tokenize(make()).fingerprint()
    tokenizer.add_tokens(["cat"])
    assert Tokenize(tokenizer).fingerprint() != before


@pytest.mark.parametrize("train_on", ["assistant", "all"])
def test_labels_are_the_ids_that_are_learned(train_on: Any) -> None:
    step = ChatTemplate(fast(MARKED), train_on=train_on)
    for sample in conversations():
        expected = fast(MARKED).apply_chat_template(sample["messages"], tokenize=True, return_dict=True)["input_ids"]
        made = step(sample)
        assert list(made) == ["number", "input_ids", "labels"]
        assert made["input_ids"].tolist() == expected
        assert made["labels"].shape == made["input_ids"].shape
        assert made["labels"].dtype == made["input_ids"].dtype == np.int64
        learned = made["labels"] != -100
        assert made["labels"][learned].tolist() == made["input_ids"][learned].tolist()
        if train_on == "all":
            assert learned.all()
        else:
            text = fast().decode(made["labels"][learned].tolist()).replace(" ", "").replace("Ġ", "")
            assert text == said_by_assistant(sample["messages"]).replace(" ", "")


@pytest.mark.parametrize("crew", CREWS, ids=crew_name)
def test_conversations_are_the_same_in_all_workers(crew: dict[str, Any]) -> None:
    step = ChatTemplate(fast(MARKED), dtype=np.int32)
    expected = [step(sample) for sample in conversations()]
    loader = headrace.DataLoader(Stepped(step, conversations()), batch_size=4, collate_fn=as_list, **crew)
    made = [sample for batch in loader for sample in batch]
    for name in ("input_ids", "labels"):
        assert [sample[name].tolist() for sample in made] == [sample[name].tolist() for sample in expected]
        assert {sample[name].dtype for sample in expected} == {np.dtype(np.int32)}


def test_staged_conversations_are_cached_and_a_cache_of_another_template_is_out_of_date(tmp_path: Any) -> None:
    def cached(template: str, **words: Any) -> Any:
        step = ChatTemplate(fast(template), **words)
        return headrace.Staged(conversations()).map(step).cache(tmp_path / "ids")

    cached(MARKED)
    batch = next(iter(headrace.DataLoader(cached(MARKED), batch_size=12)))
    assert batch["labels"].values.shape == batch["input_ids"].values.shape
    for template, words in ((MARKED + "end", {}), (MARKED, {"train_on": "all"}), (MARKED, {"opening": "a"})):
        with pytest.raises(StaleCacheError):
            cached(template, **words)


def test_threads_render_one_template_at_a_time() -> None:
    step = ChatTemplate(fast(MARKED))
    expected = [step(sample)["labels"].tolist() for sample in conversations()]
    made: list[Any] = []

    def render() -> None:
        for _ in range(5):
            made.append([step(sample)["labels"].tolist() for sample in conversations()])

    threads = [threading.Thread(target=render) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [expected] * 20


def weather(place: str) -> str:
    """
    Tells the weather.

    Args:
        place: where.
    """
    return place


def test_tools_and_variables_reach_the_template() -> None:
    messages = conversations()[0]["messages"]
    tokenizer = fast(MARKED)
    expected = tokenizer.apply_chat_template(messages, tools=[weather], opening="a", return_dict=True)["input_ids"]
    plain = ChatTemplate(tokenizer, opening="a")(messages)["input_ids"].tolist()
    assert expected != plain
    step = pickle.loads(pickle.dumps(ChatTemplate(tokenizer, tools=[weather], opening="a")))
    assert step(messages)["input_ids"].tolist() == expected
    of_sample = ChatTemplate(tokenizer, tools="tools", opening="a")
    made = of_sample({"messages": messages, "tools": step.tools})
    assert made["input_ids"].tolist() == expected
    assert (
        ChatTemplate(tokenizer, tools=[weather]).fingerprint() == ChatTemplate(tokenizer, tools=[weather]).fingerprint()
    )


def test_a_template_may_be_given() -> None:
    messages = conversations()[0]["messages"]
    made = ChatTemplate(fast(UNMARKED), chat_template=MARKED)(messages)
    assert made["labels"].tolist() == ChatTemplate(fast(MARKED))(messages)["labels"].tolist()


def test_a_template_that_does_not_mark_the_assistants_words_is_refused() -> None:
    with pytest.raises(UsageError, match=r"(?s)without \{% generation %\}.*endgeneration.*train_on=\"all\""):
        ChatTemplate(fast(UNMARKED))

    messages = conversations()[0]["messages"]
    made = ChatTemplate(fast(UNMARKED), train_on="all")(messages)
    assert made["labels"].tolist() == made["input_ids"].tolist()


def test_a_tokenizer_without_a_template_is_refused() -> None:
    with pytest.raises(UsageError, match="has no chat template"):
        ChatTemplate(fast())


def test_a_tokenizer_that_cannot_tell_where_tokens_lie_is_refused() -> None:
    with pytest.raises(UsageError, match="written in Python"):
        ChatTemplate(slow())

    made = ChatTemplate(slow(), train_on="all")([{"role": "user", "content": "hi"}])
    assert made["labels"].tolist() == made["input_ids"].tolist() == [ord(letter) for letter in "the user hi"]


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([], "a conversation without messages"),
        ("hello", "(?s)no conversation.*found: *str"),
        (None, "(?s)no conversation.*found: *NoneType"),
        ([[{"role": "user", "content": "hi"}]], "(?s)no conversation.*a list of list"),
        ([{"from": "user", "value": "hi"}], "(?s)no conversation.*a dict of 'from', 'value'"),
        ([{"role": "user", "content": "hi"}], "(?s)the assistant says nothing.*turns of: user"),
        # As a step with batched=True is given them.
        (({"role": ["user"], "content": ["hi"]},), "(?s)no conversation.*a role that is a list.*leave batched out"),
    ],
)
def test_what_is_no_conversation_is_a_bad_sample(messages: Any, expected: str) -> None:
    with pytest.raises(SampleError, match=expected):
        ChatTemplate(fast(MARKED))({"messages": messages})


def test_bad_conversations_can_be_skipped() -> None:
    samples = conversations()
    samples[5] = {"number": 5, "messages": [{"role": "user", "content": "hi"}]}
    data = headrace.Staged(samples).map(ChatTemplate(fast(MARKED)))
    loader = headrace.DataLoader(data, batch_size=4, num_workers=2, on_error="skip")
    assert [number for batch in loader for number in batch["number"].tolist()] == [0, 1, 2, 3, 4, 6, 7, 8, 9, 10, 11]


@pytest.mark.parametrize("words", [{"train_on": "user"}, {"tokenize": False}, {"padding": True}, {"dtype": "uint8"}])
def test_wrong_arguments_are_refused(words: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=f"ChatTemplate\\({next(iter(words))}=\\)"):
        ChatTemplate(fast(MARKED), **words)


def test_tokenizers_of_other_libraries_have_no_templates() -> None:
    with pytest.raises(UsageError, match=r"(?s)tokenizers\.Tokenizer.*a tokenizer of transformers"):
        ChatTemplate(of_tokenizers())


@pytest.mark.parametrize("workers", [0, 2])
def test_the_example_of_conversations_learns_what_the_assistant_says(tmp_path: Path, workers: int) -> None:
    script = Path(__file__).parents[2] / "examples" / "finetune_chat.py"
    run = programs.run([script, "--conversations", 300, "--workers", workers], cwd=tmp_path)
    assert run.returncode == 0, run.stderr
    found = re.search(r"; loss (\d\.\d+), at the end (\d\.\d+)\n", run.stdout)
    assert found is not None
    assert float(found[2]) < 0.5 * float(found[1])
    assert "learned of the first conversation: it is 11 . <end> it is 5 . <end>" in run.stdout
    found = re.search(r"padding: (\d+\.\d)%; with each conversation padded to the longest (\d+\.\d)%\n", run.stdout)
    assert found is not None
    assert float(found[1]) < 10 < 40 < float(found[2])
