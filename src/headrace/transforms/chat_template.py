"""Conversations to token ids and labels, by the chat template of a tokenizer of transformers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from headrace.core.errors import SampleError, UsageError, wrong_argument
from headrace.core.process.this_process import ForkLock
from headrace.packing.columns import IGNORED
from headrace.transforms.entries import named_entry, with_results
from headrace.transforms.text_encoder import TextEncoder
from headrace.transforms.tokenization import checked_dtype

TrainOn = Literal["assistant", "all"]

GENERATION = re.compile(r"\{%[-+]?\s*generation\s*[-+]?%\}")
"""What stands in front of the assistant's words in a chat template that marks them."""

OURS = (
    "tokenize",
    "return_dict",
    "return_tensors",
    "return_assistant_tokens_mask",
    "add_generation_prompt",
    "continue_final_message",
    "padding",
    "tokenizer_kwargs",
)
"""Arguments of `apply_chat_template` that the step gives itself, or that make no labels."""

RENDERING = ForkLock()
"""Held while a template is rendered: some versions of transformers note what is the assistant's in the template, which
all threads share."""


class ChatTemplate:
    """A step that turns a conversation into `input_ids` and `labels`, by `apply_chat_template` of transformers.

    `labels[i]` is `input_ids[i]` where the assistant says it, and -100, which losses ignore, everywhere else. They are
    not shifted: the models of transformers shift them; otherwise predict `labels[1:]` from `input_ids[:-1]`.

    What the assistant says is what the template marks by `{% generation %}`: whether that includes the token at the end
    of a turn is up to the template. Many templates mark nothing. Then transformers returns a mask of zeros; this step
    refuses such a template. A conversation in which the assistant says nothing is a bad sample: a `SampleError`, which
    `DataLoader(on_error="skip")` leaves out.

    The conversation is neither cut nor padded. Each thread copies the tokenizer; threads render one at a time, so
    prefer worker processes.

    Args:
        tokenizer: a tokenizer of transformers; a fast one, unless `train_on="all"`.
        column: the entry of a sample that holds the messages: a list of dicts with `role` and `content`. It is dropped.
        to: the entry for the token ids, int [n]; `labels`, of the same type and shape, stands beside it.
        train_on: `"assistant"`, or `"all"`: all tokens are labels.
        tools: the functions, or their JSON schemas, that the template may list; or the name of the entry of a sample
            that holds them.
        dtype: int64, or int32.
        options: further arguments of `apply_chat_template`, such as `chat_template=`, or variables of the template.

    Raises:
        UsageError: wrong arguments, or a template that does not mark what the assistant says.

    Examples:
        >>> try:
        ...     headrace.transforms.ChatTemplate("a name")
        ... except headrace.errors.UsageError as error:
        ...     print(str(error).splitlines()[0])
        wrong argument
    """

    def __init__(
        self,
        tokenizer: Any,
        column: str = "messages",
        *,
        to: str = "input_ids",
        train_on: TrainOn = "assistant",
        tools: str | Sequence[Any] | None = None,
        dtype: npt.DTypeLike = np.int64,
        **options: Any,
    ) -> None:
        self.encoder = TextEncoder(tokenizer, "ChatTemplate")
        if self.encoder.library != "transformers":
            expected = "a tokenizer of transformers: other libraries have no chat templates"
            raise wrong_argument("tokenizer", tokenizer, expected, place="ChatTemplate", found=repr(self.encoder))
        if train_on not in get_args(TrainOn):
            raise wrong_argument("train_on", train_on, '"assistant" or "all"', place="ChatTemplate")

        for name in OURS:
            if name in options:
                raise wrong_argument(name, options[name], "nothing: the step decides it", place="ChatTemplate")

        self.column = column
        self.to = to
        self.train_on = train_on
        self.tools = _schemas(tools)
        self.dtype = checked_dtype(dtype, "ChatTemplate")
        self.options = options
        self._template = self._checked_template(tokenizer)

    def __call__(self, sample: Any) -> Any:
        """Returns the sample with `input_ids` and `labels` in place of messages; of messages alone, a dict of the two.

        Raises `SampleError` for what is no conversation or has nothing to learn, and `UsageError` for a sample without
        the entries.
        """
        tools = self.tools
        if not isinstance(sample, Mapping):
            return self._encoded(sample, tools)

        messages = named_entry(sample, self.column, "ChatTemplate")
        if isinstance(tools, str):
            tools = named_entry(sample, tools, "ChatTemplate")
        made = self._encoded(messages, tools)
        return with_results(sample, made, dropped=self.column)

    def fingerprint(self) -> str:
        """Returns a text that changes when results do: the tokenizer, its chat template and the arguments."""
        arguments = [self.column, self.to, self.train_on, self.tools, self.dtype.name, self.options, self._template]
        return f"{json.dumps(arguments, default=repr, sort_keys=True)} {self.encoder.fingerprint()}"

    def _checked_template(self, tokenizer: Any) -> str:
        """Returns the template. Raises `UsageError` if there is none, or one without the marks that are needed."""
        # The tools of a sample are not known yet; that there are some may choose another template.
        tools = [] if isinstance(self.tools, str) else self.tools
        try:
            template = str(tokenizer.get_chat_template(self.options.get("chat_template"), tools))
        except ValueError as error:
            fix = 'give one: ChatTemplate(..., chat_template="...")'
            what = "this tokenizer has no chat template"
            raise UsageError.about(what, place="ChatTemplate", found=str(error), fix=fix) from error

        if self.train_on == "all":
            return template

        if not tokenizer.is_fast:
            raise UsageError.about(
                "this tokenizer cannot tell which tokens are the assistant's",
                place="ChatTemplate(tokenizer=)",
                found=f"{self.encoder!r}, which is written in Python",
                expected="a fast tokenizer, which knows where in the text each token lies",
                fix='load a fast one, or train on all tokens: ChatTemplate(..., train_on="all")',
            )

        if GENERATION.search(template) is None:
            raise UsageError.about(
                "this chat template does not mark what the assistant says",
                place="ChatTemplate(chat_template=)",
                found="a template without {% generation %}, of which transformers makes a mask of zeros",
                expected="{% generation %} and {% endgeneration %} around the assistant's words",
                fix='give a template that has them, chat_template="...", or train on all tokens, train_on="all"',
            )

        return template

    def _encoded(self, messages: Any, tools: Any) -> dict[str, npt.NDArray[Any]]:
        turns = self._turns(messages)
        with RENDERING.here:
            made = self.encoder.own().apply_chat_template(
                turns,
                tools=tools,
                tokenize=True,
                return_dict=True,
                return_assistant_tokens_mask=self.train_on == "assistant",
                tokenizer_kwargs={"verbose": False, "return_attention_mask": False},
                **self.options,
            )

        ids = np.array(made["input_ids"], self.dtype)
        if self.train_on == "all":
            return {self.to: ids, "labels": ids.copy()}

        said = np.array(made["assistant_masks"], np.bool_)
        if not said.any():
            roles = ", ".join(str(turn.get("role")) for turn in turns)
            raise SampleError.about(
                "the assistant says nothing in a conversation",
                place=self._place,
                found=f"turns of: {roles}",
                expected="a turn of the assistant, with words that the chat template marks by {% generation %}",
                fix='leave such conversations out, for example with DataLoader(on_error="skip")',
            )

        return {self.to: ids, "labels": np.where(said, ids, IGNORED).astype(self.dtype)}

    def _turns(self, messages: Any) -> list[Mapping[str, Any]]:
        """Returns the messages as a list. Raises `SampleError` if they are none."""
        expected = "a list of dicts with role and content"
        if isinstance(messages, (str, bytes, Mapping)) or not isinstance(messages, (Sequence, np.ndarray)):
            found = type(messages).__name__
            raise SampleError.about("no conversation", place=self._place, found=found, expected=expected)

        turns = list(messages)
        if not turns:
            fix = 'leave such conversations out, for example with DataLoader(on_error="skip")'
            what = "a conversation without messages"
            raise SampleError.about(what, place=self._place, found="an empty list", expected=expected, fix=fix)

        for turn in turns:
            if not isinstance(turn, Mapping) or "role" not in turn:
                if isinstance(turn, Mapping):
                    found = "a dict of " + ", ".join(map(repr, turn))
                else:
                    found = f"a list of {type(turn).__name__}"
                raise SampleError.about("no conversation", place=self._place, found=found, expected=expected)
            if not isinstance(turn["role"], str):
                found = f"a role that is a {type(turn['role']).__name__}, as a batched step is given them"
                fix = "leave batched out: the step takes one conversation at a time"
                raise SampleError.about("no conversation", place=self._place, found=found, expected=expected, fix=fix)

        return turns

    @property
    def _place(self) -> str:
        return f"ChatTemplate(column={self.column!r})"

    def __repr__(self) -> str:
        return f"ChatTemplate({self.encoder}, column={self.column!r}, train_on={self.train_on!r})"


def _schemas(tools: str | Sequence[Any] | None) -> str | list[Any] | None:
    """Returns tools as JSON schemas, which can be pickled and compared; the name of an entry as it is."""
    if tools is None or isinstance(tools, str):
        return tools

    schemas = []
    for tool in tools:
        if callable(tool):
            from transformers.utils import get_json_schema

            tool = get_json_schema(tool)
        schemas.append(tool)

    return schemas
