"""Format, step, configuration and sizes of another trainer's checkpoint.

The survey only reads, without the trainer's library. Standard library only; Python 3.8. The converter
(``midstream_engine.convert``) recognises the same formats.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
from typing import Any, BinaryIO, Dict, List, Literal, Optional, Sequence, Set, Tuple, cast

from midstream_core import dcp_metadata, levanter_checkpoints
from midstream_core.format_error import FormatError
from midstream_core.json_types import int_of, optional_list, optional_object
from midstream_core.latest_file import named_folder
from midstream_core.restricted_pickle import Record
from midstream_core.safetensors_header import load_header
from midstream_core.torch_archive import TensorInArchive, saved_value
from midstream_host.declarations import reads
from midstream_host.shapes import FileName, Text
from midstream_host.trainers import maxtext_survey
from midstream_host.trainers.checkpoint_files import (
    CONFIG_LIMIT,
    STATE_LIMIT,
    CheckpointFiles,
    DiskFiles,
    limited,
    normal_path,
    object_of,
    places_of,
    text_of,
)

NEOX, LEVANTER, HUGGING_FACE, TORCH_DCP, MAXTEXT = "neox", "levanter", "huggingface", "torch-dcp", "maxtext"
TRAINER_FILES = ("optimizer.pt", "scheduler.pt", "trainer_state.json")  # of Trainer, as the converter looks
ARGUMENTS, EXPORTED_ARGUMENTS = "training_args.bin", "../training_arguments.json"
# Arguments of Trainer that determine batch and types.
_BATCH = ("per_device_train_batch_size", "gradient_accumulation_steps", "_n_gpu")
_TYPES = ("bf16", "fp16")
LEVANTER_CONFIGS = ("config.yaml", "train_lm.yaml", "../config.yaml", "../../config.yaml")  # as the converter looks
TITAN_CONFIGS = ("config.json", "../config.json", "../../config.json")  # as the converter looks, but for YAML
DCP = ".metadata"
_DCP_NUMBERS = ("train_state.step", "dataloader.world_size")
_NUMBERED = re.compile(r"\D*(\d{1,12})")
_MODEL = re.compile(r"mp_rank_(\d+)_model_states\.pt")
_LAYER = re.compile(r"layer_(\d+)(?:-model_(\d+))?-model_states\.pt")
_OPTIMIZER = re.compile(r"(?:bf16_)?zero_pp_rank_(\d+)_mp_rank_(\d+)_?optim_states\.pt")
_NEOX_NAME = re.compile(r"(?:sequential\.)?(\d+)\.(.+)")
_NEOX_MLP = ("mlp.linear1.weight", "mlp.dense_h_to_4h.weight", "mlp.w3.weight")
_NEOX_FIRST_BLOCK = 2
_TIED = "tied_modules.embed.word_embeddings.weight"


@dataclasses.dataclass(frozen=True)
class CheckpointSurvey:
    """A checkpoint of another trainer. Sizes in bytes."""

    kind: Literal["neox", "levanter", "huggingface", "torch-dcp", "maxtext"]
    directory: FileName  # of the checkpoint, which may be the newest of those in the surveyed one
    step: int
    size: int  # of its files
    configs: Dict[str, Text]  # text by file name
    shapes: Dict[str, List[int]]  # those that the configuration does not determine, or all, by name
    numbers: Dict[str, int]  # other facts of the files
    looked: List[FileName] = dataclasses.field(default_factory=lambda: [])  # directories with checkpoints of Levanter
    unread: Text = ""  # one that its configuration names, and that was not looked at


@reads()
def survey(path: str, config: str = "") -> CheckpointSurvey:
    """Survey the checkpoint at ``path``: one, or the newest in a run's directory.

    Args:
        path: The directory; ``~`` is the home directory.
        config: For a checkpoint of Levanter's, the run's YAML; empty: look near the checkpoint.

    Raises:
        ValueError: It is no checkpoint that can be imported, or a file is missing or malformed.
        OSError: It cannot be read.
    """
    path = os.path.abspath(os.path.expanduser(path))
    return survey_of(DiskFiles(), path, os.path.expanduser(config))


def survey_of(files: CheckpointFiles, path: str, config: str = "") -> CheckpointSurvey:
    """As `survey`, of the files that ``files`` has.

    Raises also what ``files`` raises.
    """
    names = files.names(path)
    if any(_MODEL.fullmatch(name) for name in names) or (
        "latest" in names and any(name.startswith("global_step") for name in names)
    ):
        return _neox(files, path)
    if "manifest.json" in names and "train.json" in names:
        raise ValueError("{} is a checkpoint of midstream: --migrate RUN migrates its run".format(path))
    steps = [name for name in names if name.startswith("step-")]
    is_run = any(files.is_file(os.path.join(path, name, "metadata.json")) for name in steps)
    if "metadata.json" in names or (is_run and "config.json" not in names):
        return _levanter(files, path, config)
    newest = maxtext_survey.find(files, path, names)
    if newest is not None:
        return CheckpointSurvey(MAXTEXT, newest, *maxtext_survey.facts(files, newest, config))
    numbered = {int(match.group(1)): match.group(0) for match in map(_NUMBERED.fullmatch, names) if match}
    of_torch = [step for step in numbered if files.is_file(os.path.join(path, numbered[step], DCP))]
    if DCP in names or of_torch:  # first: torchtitan's configuration has the name of Hugging Face's
        return _torch_dcp(files, path if DCP in names else os.path.join(path, numbered[max(of_torch)]), config)
    if "config.json" in names:
        return _hugging_face(files, path)
    raise ValueError("{}: not a checkpoint of GPT-NeoX, Levanter, MaxText, torch (DCP) or Hugging Face".format(path))


@reads()
def sizes(paths: Sequence[str]) -> List[Optional[int]]:
    """The bytes of each file or directory; None where there is none."""
    expanded = [os.path.expanduser(path) for path in paths]
    return [_size(path) if os.path.lexists(path) else None for path in expanded]


def _size(path: str) -> int:
    return sum(DiskFiles().sizes(path).values()) if os.path.isdir(path) else os.stat(path).st_size


TrainerState = Dict[str, Any]  # the value in a file of torch, by name


def _torch(files: CheckpointFiles, path: str) -> TrainerState:
    with files.open(path) as file:
        return training_state(file, path)


def training_state(file: BinaryIO, name: str) -> TrainerState:
    """Return the mapping in a file of torch, with tensors as `TensorInArchive`.

    Args:
        file: Open for reading, seekable.
        name: Its name in messages.

    Raises:
        ValueError: It is no such file.
        OSError: It cannot be read.
    """
    value = saved_value_of(file, name)
    if not isinstance(value, dict):
        raise ValueError("{}: has no training state".format(name))
    return cast("TrainerState", value)


def saved_value_of(file: BinaryIO, name: str) -> Any:
    """Return what a file of torch has; see `training_state`."""
    try:
        return saved_value(file)
    except FormatError as error:
        raise ValueError("{}: not a file of torch: it {}".format(name, error)) from None


# ------------------------------------------------------------------------------------------ GPT-NeoX


def _neox(files: CheckpointFiles, path: str) -> CheckpointSurvey:
    latest = os.path.join(path, "latest")
    if files.is_file(latest):
        try:
            path = os.path.join(path, named_folder(text_of(files, latest), files.names(path)))
        except ValueError as error:
            raise ValueError("{}/{}".format(path, error)) from None
    names = sorted(files.names(path))
    models = {int(match.group(1)): match.group(0) for match in map(_MODEL.fullmatch, names) if match}
    layers = {
        (int(match.group(1)), int(match.group(2) or 0)): match.group(0)
        for match in map(_LAYER.fullmatch, names)
        if match
    }
    if 0 not in models:
        raise ValueError("{}: there is no mp_rank_00_model_states.pt".format(path))
    state = _torch(files, os.path.join(path, models[0]))
    counted = [name for name in ("iteration", "total_iters", "global_steps") if _is_count(state.get(name))]
    if not counted:
        raise ValueError("{}: has no number of iterations".format(path))
    step = state[counted[0]]
    parallel = [int(match.group(1)) for match in map(_OPTIMIZER.fullmatch, names) if match]
    numbers = {"optimizer": int(bool(parallel) or isinstance(state.get("optimizer"), dict))}
    data = state.get("dp_world_size")
    if isinstance(data, int) or parallel:
        numbers["data_parallel"] = data if isinstance(data, int) else 1 + max(parallel)
    numbers["model_parallel"] = len(models)
    folder = os.path.join(path, "configs")
    names_of_configs = [name for name in sorted(files.names(folder)) if name.endswith((".yml", ".yaml", ".json"))]
    configs = {name: text_of(files, os.path.join(folder, name)) for name in names_of_configs}
    shapes = _neox_shapes(files, path, models, layers, state)
    return CheckpointSurvey(NEOX, path, step, sum(files.sizes(path).values()), configs, shapes, numbers)


def _neox_shapes(
    files: CheckpointFiles,
    path: str,
    models: Dict[int, str],
    layers: Dict[Tuple[int, int], str],
    state: TrainerState,
) -> Dict[str, List[int]]:
    """Shapes of embedding, MLP and head, of all tensor-parallel ranks together."""
    shapes: Dict[str, List[int]] = {}

    def add(rank_state: TrainerState, layer: Optional[int]) -> None:
        for name, value in rank_state.items():
            if not isinstance(value, TensorInArchive):
                continue
            matched = _NEOX_NAME.fullmatch(name)
            number = 0 if name == _TIED else layer if layer is not None else int(matched.group(1)) if matched else -1
            inner = "word_embeddings.weight" if name == _TIED else matched.group(2) if matched else name
            key = {"word_embeddings.weight": "embedding", "final_linear.weight": "head"}.get(inner)
            if key is None and number == _NEOX_FIRST_BLOCK and inner in _NEOX_MLP:
                key = "mlp"
            if key is not None and value.shape:
                rows = shapes[key][0] if key in shapes else 0
                shapes[key] = [rows + value.shape[0], *value.shape[1:]]

    if not layers:
        for rank, name in sorted(models.items()):
            module = (state if rank == 0 else _torch(files, os.path.join(path, name))).get("module")
            if isinstance(module, dict):
                add(cast(TrainerState, module), None)
        return shapes
    needed = {0, _NEOX_FIRST_BLOCK, max(layer for layer, _ in layers)}
    for (layer, _), name in sorted(layers.items()):
        if layer in needed:
            add(_torch(files, os.path.join(path, name)), layer)
    return shapes


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


# ------------------------------------------------------------------------------------------ Levanter


def _levanter(files: CheckpointFiles, path: str, config: str) -> CheckpointSurvey:
    choice = levanter_checkpoints.Choice(path, [path])
    candidates = [config] if config else [os.path.join(path, name) for name in LEVANTER_CONFIGS]
    if not files.is_file(os.path.join(path, "metadata.json")):
        beside = [os.path.join(path, name) for name in LEVANTER_CONFIGS[:3]]
        first = next((candidate for candidate in candidates[:1] + beside if files.is_file(candidate)), "")
        chosen = levanter_checkpoints.choose(places_of(files), path, text_of(files, first) if first else "")
        if chosen is None:
            raise ValueError("{}: no checkpoint with a metadata.json that has a step".format(path))
        choice, path = chosen, chosen.path
        if not config:
            candidates = [os.path.join(path, name) for name in LEVANTER_CONFIGS] + beside
    try:
        metadata = json.loads(text_of(files, os.path.join(path, "metadata.json")))
    except ValueError as error:
        raise ValueError("{}/metadata.json: not JSON, perhaps truncated ({})".format(path, error)) from None
    step = cast(TrainerState, metadata).get("step") if isinstance(metadata, dict) else None
    if not isinstance(step, int):
        raise ValueError("{}: metadata.json has no step".format(path))
    config_path = next((candidate for candidate in candidates if files.is_file(candidate)), None)
    if config_path is None:
        raise ValueError("{}: the run's configuration is missing: name its YAML with --config".format(config or path))
    shapes: Dict[str, List[int]] = {}
    numbers: Dict[str, int] = {"optimizer": 1}
    sizes_of = files.sizes(path)
    for name in sizes_of:
        parent, _, file = name.rpartition("/")
        if file == ".zarray":  # zarr 2, of Levanter 1.2; newer releases store arrays in OCDBT
            described = json.loads(text_of(files, os.path.join(path, name)))
            shapes[parent or "."] = [int(length) for length in described["shape"]]
    configs = {normal_path(config_path): text_of(files, config_path)}
    return CheckpointSurvey(
        LEVANTER, path, step, sum(sizes_of.values()), configs, shapes, numbers, choice.looked, choice.unread
    )


# ------------------------------------------------------------------------------------------ torch (DCP)


def _torch_dcp(files: CheckpointFiles, path: str, config: str) -> CheckpointSurvey:
    described = os.path.join(path, DCP)
    try:
        with files.open(described) as file:
            state = dcp_metadata.state_of(limited(file, described, dcp_metadata.METADATA_LIMIT))
        counts = {name: _number(files, path, state.values[name]) for name in _DCP_NUMBERS if name in state.values}
    except FormatError as error:
        raise ValueError("{}: {}".format(described, error)) from None
    step, ranks = (counts.get(name) for name in _DCP_NUMBERS)
    if step is None or step != int(step):
        raise ValueError("{}: has no {}: torchtitan's names are read".format(path, _DCP_NUMBERS[0]))
    candidates = [config] if config else [os.path.join(path, name) for name in TITAN_CONFIGS]
    config_path = next((candidate for candidate in candidates if files.is_file(candidate)), None)
    if config_path is None:
        raise ValueError(
            "{}: the run's configuration is missing: --config names what torchtitan wrote with "
            "--debug.save_config_file".format(config or path)
        )
    shapes = {name: list(tensor.shape) for name, tensor in state.tensors.items() if not name.startswith("optimizer.")}
    numbers = {"optimizer": int(any(name.endswith(".exp_avg_sq") for name in state.tensors))}
    if ranks is not None:
        numbers["data_parallel"] = int(ranks)
    size = sum(files.sizes(path).values())
    configs = {normal_path(config_path): text_of(files, config_path)}
    return CheckpointSurvey(TORCH_DCP, path, int(step), size, configs, shapes, numbers)


def _number(files: CheckpointFiles, path: str, place: dcp_metadata.Place) -> Optional[float]:
    with files.open(os.path.join(path, place.file)) as file:
        return dcp_metadata.number(file, place)


# ------------------------------------------------------------------------------------------ Hugging Face


def _hugging_face(files: CheckpointFiles, path: str) -> CheckpointSurvey:
    config = text_of(files, os.path.join(path, "config.json"))
    shapes: Dict[str, List[int]] = {}
    types: Set[str] = set()
    for name in sorted(files.names(path)):
        if name.endswith(".safetensors"):
            for tensor, (shape, kind) in _safetensors(files, os.path.join(path, name)).items():
                shapes[tensor] = shape
                types.add(kind)
    if not shapes:
        raise ValueError("{}: has no *.safetensors file".format(path))
    size = sum(files.sizes(path).values())
    configs, step, numbers = {"config.json": config}, 0, {"optimizer": 0}
    names = files.names(path)
    if any(name in names for name in TRAINER_FILES):
        step, numbers, half = _of_trainer(files, path, names)
        configs[ARGUMENTS] = json.dumps({"half": half, "weights": sorted(types)})
    return CheckpointSurvey(HUGGING_FACE, path, step, size, configs, shapes, numbers)


def _of_trainer(files: CheckpointFiles, path: str, names: Sequence[str]) -> Tuple[int, Dict[str, int], bool]:
    """Step and numbers of Trainer's checkpoint, and whether it computed in halves."""
    lacking = [name for name in TRAINER_FILES if name not in names]
    if lacking:
        raise ValueError("{}: lacks {} of a checkpoint of Trainer".format(path, " and ".join(lacking)))
    state = object_of(files, os.path.join(path, "trainer_state.json"), STATE_LIMIT)
    counts = [state.get(name) for name in ("global_step", "max_steps")]
    if not all(map(_is_count, counts)):
        raise ValueError("{}/trainer_state.json: has no global_step and max_steps".format(path))
    if ARGUMENTS in names:
        with files.open(os.path.join(path, ARGUMENTS)) as file:
            arguments = _record_state(saved_value_of(file, os.path.join(path, ARGUMENTS)))
    else:
        arguments = object_of(files, os.path.join(path, EXPORTED_ARGUMENTS), CONFIG_LIMIT)
    processes = _record_state(arguments.get("distributed_state")).get("num_processes")
    batch = int_of(processes) if _is_count(processes) and processes else 1
    for name in _BATCH:
        factor = arguments.get(name)
        batch *= int_of(factor) if _is_count(factor) and factor else 1
    numbers = {"optimizer": 1, "steps": int_of(counts[1]), "batch": batch}
    return int_of(counts[0]), numbers, any(arguments.get(name) is True for name in _TYPES)


def _record_state(value: object) -> TrainerState:
    """Fields of a pickled object; nothing where it is none."""
    state = value.state if isinstance(value, Record) else value
    return cast("TrainerState", state) if isinstance(state, dict) else {}


def _safetensors(files: CheckpointFiles, path: str) -> Dict[str, Tuple[List[int], str]]:
    """Shape and type of each tensor of a file."""
    with files.open(path) as file:
        try:
            entries, _ = load_header(file)
        except ValueError as error:
            raise ValueError("{}: {}".format(path, error)) from None
    return {
        name: (
            [int_of(size) for size in optional_list(optional_object(entry)["shape"])],
            str(optional_object(entry).get("dtype")),
        )
        for name, entry in entries.items()
    }
