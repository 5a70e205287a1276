"""Open data that another trainer prepared."""

from __future__ import annotations

from midstream_core import records
from midstream_engine.data.data_manifest import DataManifest
from midstream_engine.data.errors import DataError
from midstream_engine.data.examples import Examples
from midstream_engine.data.imported_files import VERSION, vocabulary_of
from midstream_engine.data.levanter_cache import LevanterExamples
from midstream_engine.data.neox_dataset import NeoxExamples
from midstream_engine.data.token_cache import check_sizes


class ImportedData:
    """Open data of another trainer."""

    local = True

    def __init__(self, directory: str, manifest: DataManifest, examples: Examples) -> None:
        self.directory, self.manifest = directory, manifest
        self.digest: str = manifest["digest"]
        self.tokenizer: str = manifest["tokenizer"]
        self.vocab_size = vocabulary_of(self.tokenizer)
        self.tokens: int = manifest["tokens"]
        self.documents: int = manifest["documents"]
        self.seq_len: int = manifest["seq_len"]
        self.examples = examples


def open_imported(directory: str, manifest: DataManifest) -> ImportedData:
    """Open the imported data in ``directory``.

    Raises:
        DataError: The data is not complete, or of an unknown kind.
    """
    if manifest.get("version") != VERSION:
        raise DataError(f"{directory}/{records.MANIFEST}: not imported data of version {VERSION}")
    check_sizes(directory, manifest["objects"])
    if manifest["kind"] == "neox":
        return ImportedData(directory, manifest, NeoxExamples(directory, manifest))
    if manifest["kind"] == "levanter":
        return ImportedData(directory, manifest, LevanterExamples(directory, manifest))
    raise DataError(f"{directory}/{records.MANIFEST}: imported data of kind {manifest['kind']!r} is not known")
