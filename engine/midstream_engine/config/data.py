"""What the run reads: ``data`` of the configuration."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class DataConfig:
    """Text to tokens.

    A url is a local path, which may hold braces (``part.{1..8}.jsonl``) and globs; ``.jsonl`` and ``.jsonl.gz`` hold
    one document a line in ``text``, any other file is one document. ``stdlib:**/*.py`` are the sources of the standard
    library of the Python that runs.
    """

    tokenizer: str = "bytes"  # "bytes", or the path of a Hugging Face tokenizer.json
    train_urls: list[str] = field(default_factory=list)
    validation_urls: list[str] = field(default_factory=list)
    max_bytes: int | None = None  # of text, for each of the two sets; None: everything
    text_key: str = "text"
    eos_token: str = "<|endoftext|>"  # of tokenizer.json; the byte tokenizer uses id 256
    shuffle: bool = True
    block_cross_document_attention: bool = True  # no token attends across the end of a document
