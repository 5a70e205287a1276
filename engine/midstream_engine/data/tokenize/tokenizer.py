"""Tokenizers: bytes of text to token ids."""

from __future__ import annotations

import hashlib
import logging
import os
import sys
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from midstream_engine.base_directory import resolved_path
from midstream_engine.data.errors import DataError

log = logging.getLogger(__name__)


class Tokenizer(Protocol):
    """A tokenizer. ``id`` changes whenever the same text would have other tokens."""

    id: str
    vocab_size: int
    eos: int

    def encode(self, text: bytes) -> np.ndarray:
        """Return the ids of one document, without EOS. Shape [tokens]."""
        ...

    def encode_all(self, texts: Sequence[bytes]) -> list[np.ndarray]:
        """Return the ids of several documents: faster than one by one."""
        ...


IDS = "ids:"


class ByteTokenizer:
    """Tokenizer with one token per byte: id = the byte's value.

    EOS is id 256, which no text contains.
    """

    id = "bytes-v1"
    vocab_size = 257
    eos = 256

    def encode(self, text: bytes) -> np.ndarray:
        return np.frombuffer(text, np.uint8)

    def encode_all(self, texts: Sequence[bytes]) -> list[np.ndarray]:
        return [self.encode(text) for text in texts]


class IdTokenizer:
    """Text that is already tokenized: ``ids:SIZE`` or ``ids:SIZE:EOS``.

    ``SIZE`` is the size of the vocabulary.
    """

    def __init__(self, name: str) -> None:
        size, _, eos = name.removeprefix(IDS).partition(":")
        if not size.isdecimal() or not int(size) or (eos and not (eos.isdecimal() and int(eos) < int(size))):
            raise DataError(f"data.tokenizer: {name!r}: write ids:SIZE or ids:SIZE:EOS, as ids:50304:50256")
        self.id, self.vocab_size = name, int(size)
        self.eos = int(eos) if eos else self.vocab_size  # none of the ids: where documents end is not marked

    def encode(self, text: bytes) -> np.ndarray:
        del text
        raise DataError(f"data.tokenizer: {self.id} stands for text that is tokenized already, and this is none")

    def encode_all(self, texts: Sequence[bytes]) -> list[np.ndarray]:
        return [self.encode(text) for text in texts]


class FileTokenizer:
    """A Hugging Face ``tokenizer.json``.

    Text that is not UTF-8 is read with replacement characters. Documents have all their tokens and no others: the
    file's own settings for inputs of a fixed length do not apply.

    Runs that began when they did apply go on as they began: ``recorded`` is the id in their checkpoints, see
    `load_tokenizer`.
    """

    def __init__(self, path: str, eos_token: str, recorded: str = "") -> None:
        try:
            from tokenizers import Tokenizer as HfTokenizer
        except ImportError:
            install = f"{sys.executable} -m pip install tokenizers"
            raise DataError(f"data.tokenizer: {path} needs the package tokenizers (hint: {install})") from None
        with open(path, "rb") as file:
            content = file.read()
        try:
            self._tokenizer = HfTokenizer.from_str(content.decode())
        except Exception as error:  # noqa: BLE001 (the package raises bare Exception)
            raise DataError(f"data.tokenizer: {path} is no tokenizer.json: {error}") from None
        eos = self._tokenizer.token_to_id(eos_token)
        if eos is None:
            raise DataError(f"data.eos_token: {eos_token!r} is not in the vocabulary of {path}")
        self.eos = eos
        self.vocab_size = self._tokenizer.get_vocab_size(with_added_tokens=True)
        self.id = f"tokenizer.json:{hashlib.sha256(content).hexdigest()}:{eos_token}"
        fixed_length = bool(self._tokenizer.truncation or self._tokenizer.padding)
        if self.id == recorded:
            if fixed_length:
                log.warning(
                    "data.tokenizer: %s cuts documents off at a length, or fills them up: this run began so and goes "
                    "on so; a new run has complete documents", path,
                )  # fmt: skip
            return
        if getattr(self._tokenizer.model, "dropout", None):
            raise DataError(
                f"data.tokenizer: {path} has dropout, with which the same text has other tokens each time "
                "(hint: set model.dropout in it to null)"
            )
        # Other settings have other ids: caches and checkpoints of earlier runs have the plain one.
        if (size := 1 + max(self._tokenizer.get_vocab(with_added_tokens=True).values())) != self.vocab_size:
            self.vocab_size = size  # ids may have gaps, so that the largest is above their number
            self.id += ":all ids"
        # Many files have the length that was last used with them: documents would be cut off there, or filled up.
        if fixed_length:
            self._tokenizer.no_truncation()
            self._tokenizer.no_padding()
            self.id += ":any length"

    def encode(self, text: bytes) -> np.ndarray:
        return self.encode_all([text])[0]

    def encode_all(self, texts: Sequence[bytes]) -> list[np.ndarray]:
        decoded = [text.decode("utf-8", errors="replace") for text in texts]
        # The fast variant skips each token's position in the text, which is unused.
        encodings = self._tokenizer.encode_batch_fast(decoded, add_special_tokens=False)
        return [np.asarray(encoding.ids, np.uint32) for encoding in encodings]


def load_tokenizer(name: str, eos_token: str, recorded: str = "") -> Tokenizer:
    """Load a tokenizer by its name or path.

    Args:
        name: ``bytes``, ``ids:SIZE[:EOS]``, or the path of a ``tokenizer.json`` or of its folder.
        eos_token: Token at the end of a document, in the file's vocabulary.
        recorded: Id of the tokenizer in the checkpoint of the run that goes on; empty: none. The id of an older
            midstream keeps the settings of a ``tokenizer.json`` that change its tokens.

    Raises:
        DataError: There is no such tokenizer.
    """
    if name == "bytes":
        return ByteTokenizer()
    if name.startswith(IDS):
        return IdTokenizer(name)
    path = resolved_path(name)
    if os.path.isdir(path):
        path = os.path.join(path, "tokenizer.json")
    if not os.path.isfile(path):
        raise DataError(f"data.tokenizer: {name!r} is neither 'bytes' nor the path of a tokenizer.json")
    return FileTokenizer(path, eos_token, recorded)
