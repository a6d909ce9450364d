"""Tokenizers of three libraries behind one call: texts in, token ids out; copied for each thread, none imported."""

from __future__ import annotations

import copy
import functools
import hashlib
import importlib.metadata
import json
import multiprocessing
import os
import sys
import threading
from typing import Any

from headrace.core.errors import wrong_argument
from headrace.core.process.this_process import in_forked_child

KINDS = {
    "tokenizers": ("tokenizers", "Tokenizer"),
    "tiktoken": ("tiktoken", "Encoding"),
    "transformers": ("transformers.tokenization_utils_base", "PreTrainedTokenizerBase"),
}
"""For each library: the module and the name of the class of its tokenizers."""

PARALLELISM = "TOKENIZERS_PARALLELISM"
"""The environment variable by which `tokenizers` is told whether to encode a batch on all cores."""


class _OfThread(threading.local):
    """What each thread has of its own."""

    tokenizer: Any = None


class TextEncoder:
    """A user's tokenizer, of which each thread has a copy.

    Tokenizers keep state: one of Hugging Face raises "Already borrowed" where a second thread changes how it truncates
    while the first one encodes. An `Encoding` of tiktoken never changes, so threads share it.
    """

    def __init__(self, tokenizer: Any, place: str) -> None:
        """place: who asks, for the error. Raises `UsageError` if this is no tokenizer of a library that is known."""
        self.library = library_of(tokenizer, place)
        self._tokenizer = tokenizer
        self._of_thread = _OfThread()
        _mind_forks()

    def own(self) -> Any:
        """Returns this thread's tokenizer."""
        if self.library == "tiktoken":
            return self._tokenizer

        if self._of_thread.tokenizer is None:
            # Not sooner: while a spawned process unpickles its work, it does not know its parent yet.
            if multiprocessing.parent_process() is not None:
                _use_one_thread()

            own = copy.deepcopy(self._tokenizer)
            if self.library == "tokenizers":
                own.no_truncation()
                own.no_padding()
            self._of_thread.tokenizer = own

        return self._of_thread.tokenizer

    def encode(self, texts: list[str], add_special_tokens: bool) -> list[list[int]]:
        """Returns the token ids of each text: lists of their own, neither cut nor padded."""
        if not texts:
            return []

        tokenizer = self.own()
        if self.library == "tokenizers":
            # Also for one text: it does not look for offsets, and lets other threads run.
            return [made.ids for made in tokenizer.encode_batch_fast(texts, add_special_tokens=add_special_tokens)]

        if self.library == "transformers":
            made = tokenizer(
                texts,
                add_special_tokens=add_special_tokens,
                padding=False,
                truncation=False,
                return_attention_mask=False,
                return_token_type_ids=False,
                verbose=False,
            )
            return list(made["input_ids"])

        # Its `encode_ordinary_batch` does the same in threads, which take more time than they save for short texts.
        return [tokenizer.encode_ordinary(text) for text in texts]

    def fingerprint(self) -> str:
        """Returns a text that changes when token ids may: the tokenizer's contents, and the version of its library."""
        contents: Any
        if self.library == "tokenizers":
            contents = _contents(self._tokenizer)
        elif self.library == "tiktoken":
            contents = _contents_of_encoding(self._tokenizer)
        else:
            contents = _contents_of_pretrained(self._tokenizer)

        text = json.dumps(contents, default=repr, sort_keys=True)
        digest = hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()
        return f"{self.library} {importlib.metadata.version(self.library)} {digest}"

    def __getstate__(self) -> dict[str, Any]:
        # A `threading.local` cannot be pickled; the other process makes its own copies.
        return {"library": self.library, "_tokenizer": self._tokenizer}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _of_thread=_OfThread())
        _mind_forks()

    def __repr__(self) -> str:
        kind = type(self._tokenizer)
        return f"{kind.__module__.partition('.')[0]}.{kind.__name__}"


def library_of(tokenizer: object, place: str) -> str:
    """Returns the name of the library that a tokenizer comes from. Raises `UsageError` if it is none that is known."""
    for library, (module, name) in KINDS.items():
        # Whoever has an object of a class has imported its module.
        kind = getattr(sys.modules.get(module), name, None)
        if kind is not None and isinstance(tokenizer, kind):
            return library

    expected = "a tokenizers.Tokenizer, a tiktoken.Encoding, or a tokenizer of transformers"
    fix = None
    if isinstance(tokenizer, str):
        fix = "load it first, for example with transformers.AutoTokenizer.from_pretrained(...)"
    found = f"{type(tokenizer).__module__}.{type(tokenizer).__qualname__}"
    raise wrong_argument("tokenizer", tokenizer, expected, place=place, found=found, fix=fix)


@functools.cache
def _mind_forks() -> None:
    """Has `tokenizers` use one thread in each process that is forked from this one."""
    in_forked_child(_use_one_thread)


def _use_one_thread() -> None:
    # In a forked child its pool of threads does not exist: it would wait for it forever if the user has set "true".
    os.environ[PARALLELISM] = "false"


def _contents(tokenizer: Any) -> dict[str, Any]:
    contents: dict[str, Any] = json.loads(tokenizer.to_str())
    # Set by each call of a tokenizer of transformers, and not used here.
    contents["truncation"] = None
    contents["padding"] = None
    return contents


def _contents_of_encoding(encoding: Any) -> list[Any]:
    # There is no public way to the ranks; it pickles these four itself.
    digest = hashlib.blake2b(digest_size=16)
    for token, rank in sorted(encoding._mergeable_ranks.items()):
        digest.update(b"%d %d " % (rank, len(token)))
        digest.update(token)

    return [encoding.name, encoding._pat_str, digest.hexdigest(), encoding._special_tokens]


def _contents_of_pretrained(tokenizer: Any) -> list[Any]:
    kind = type(tokenizer)
    contents: list[Any] = [kind.__module__, kind.__qualname__, tokenizer.special_tokens_map]
    if tokenizer.is_fast:
        version = importlib.metadata.version("tokenizers")
        contents += [version, tokenizer.split_special_tokens, _contents(tokenizer.backend_tokenizer)]
    else:
        contents += [tokenizer.get_vocab(), tokenizer.added_tokens_decoder, tokenizer.init_kwargs]

    return contents
