"""Computations that NeoX has changed without changing names and shapes.

A checkpoint has no record of NeoX's version: ``save_ds_checkpoint`` stores the iteration, eight arguments and the
configuration files of the user. Evidence is what these have: a ``git_hash``, settings that only some versions accept
(an unknown one ends NeoX), names of tensors, shapes. Otherwise the user has to name it.

Two things changed (github.com/EleutherAI/gpt-neox):

- Grouped queries, rows of ``query_key_value``. Since f36aed7f (2024-02-22) they were ``[query of one head; its share of
  keys; its share of values]`` for each query head; since 96c242eb (2024-11-14) they are ``[queries; keys; values]``.
- RMSNorm: ``x / (rms(x) + epsilon)`` until 4c9f1081 (2025-05-09), since then ``x / sqrt(mean(x^2) + epsilon)``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from midstream_core.json_types import JsonObject
from midstream_engine.interop.errors import ConversionError
from midstream_engine.interop.foreign_values import TorchState

INTERLEAVED, BLOCKED = "interleaved", "blocked"
OUTSIDE, INSIDE = "outside", "inside"
LAYOUTS, EPSILONS = (INTERLEAVED, BLOCKED), (OUTSIDE, INSIDE)
# Below it both norms are the same within 1e-3, for inputs of a root mean square above 0.01.
NEGLIGIBLE = 1e-7

# Periods between the changes, by number: until 96c242eb, until 4c9f1081, since then. Commits of each on NeoX's main.
_COMMITS = (
    """f36aed7 9663802 3c03fc7 19596b0 119950c 7b8187a 31cfe52 e109bf5 df8cf24 86758c3 63b9fa1 90d4cb3 8c13642 c1fa994
    1e7abe7 82ddc66 6809bbc 03186de 277141e 7267a74 e6b5261 4085302 1960b66 3616658 977448e 51a7de9 01657aa 703d02f
    838d5bf 9d9d7c8 06e5f0c 916c883 c814959 4bc6670 49cd41f d037756 153e732 2746d43 1d55708 d3d59f2 dfc6722 b5c0afe
    4a34e0a 90a6cdb 2382bd4 4c426da 2608972 0e5f6db 1cee5b7 c1ea2a1 0ef2c07 f8c9e68 8b43196 e7c0182 591563d c786367
    7548a8b 0d4bdb9 ec82c05 77e8158 836aefa 01e74f4 61a3daa 1c72742 23f42bd a9aff20 17fb83f c1ae1d7 adbf5d6 e37ad2f
    a6d82ea 4a2e726 d79c533 f281210 c8b3106 f9b5329 55b7512 54af72a 62c9738 4765384 1bce90c f5d7ff9 020ce55 b0b490d
    a6d6af0 c1105de 774eb58 c8f7b56 3272032 59a5236""",
    """96c242e fc74a0c 46afedf 6552654 797a4ab 50e74cd a8f7913 f532580 29080c3 8900d05 f7a5a6f d7cc7aa 9eaec64 9107b25
    62aded2 deddf29 f84b54e facb280 21fa24f ce65b36""",
    "4c9f108 d11df96 f543cbd d12c771 5150809 8b18e28 20379ad 563429f 6203ac6 19f294d ea7aefd",
)
_ALL = frozenset(range(len(_COMMITS)))
# Settings that NeoX accepted in some periods only.
_SETTINGS = {
    **dict.fromkeys(("mlp_type", "label_data_paths", "save_iters"), frozenset({0})),
    "detect_nvlink_pairs": frozenset({0, 1}),
    **dict.fromkeys(
        ("fp32_reinforce", "kl_div_beta", "kl_impl", "online_dataserver_ips", "online_dataserver_ports",
         "peak_theoretical_tflops", "reinforce_leave_one_out", "serve_model_weights", "te_columnparallel",
         "te_fp8_amax_compute_algo", "te_fp8_amax_history_len", "te_fp8_format", "te_fp8_margin", "te_fp8_mha",
         "te_fp8_wgrad", "te_layernorm_mlp", "te_mha", "te_rowparallel", "wandb_run_name", "weight_server_port"),
        frozenset({1, 2}),
    ),
    **dict.fromkeys(("fused_kernels_build_path", "moe_expert_interval", "moe_router_type"), frozenset({2})),
}  # fmt: skip
_LEGACY_MLP = re.compile(r"mlp\.w[123]\.weight")  # until 0d4bdb96 (2024-09-07)


@dataclass(frozen=True)
class Heads:
    """The attention: query heads, key heads, numbers per head."""

    queries: int
    keys: int
    size: int

    @property
    def grouped(self) -> bool:
        """Whether several query heads share a key."""
        return self.keys != self.queries

    @property
    def can_interleave(self) -> bool:
        """Return whether the first period's code, which used floats, could split the rows."""
        share = self.keys / self.queries
        rows = int(share * self.size)
        return int(self.size * (1 + 2 * share)) == self.size + 2 * rows and rows * self.queries == self.keys * self.size


@dataclass
class Revision:
    """The possible periods of the NeoX that wrote a checkpoint.

    ``findings``: the findings that leave these periods.

    ``writer``: DeepSpeed's version, for messages.
    """

    periods: frozenset[int] = _ALL
    findings: list[str] = field(default_factory=list)
    writer: str = ""

    def add(self, finding: str, periods: frozenset[int]) -> None:
        """Add a finding."""
        self.periods &= periods
        self.findings.append(finding)

    def gqa_layout(self, heads: Heads, given: str | None, notes: list[str]) -> str:
        """Return the layout of grouped queries; add a note of it with its reason.

        Raises:
            ConversionError: Nothing shows the layout, or ``given`` is impossible.
        """
        if not heads.grouped:
            return BLOCKED
        if not heads.can_interleave:
            if given == INTERLEAVED:
                raise ConversionError(
                    f"--gqa-layout {given}: {heads.size} rows per head cannot be shared among "
                    f"{heads.queries // heads.keys} query heads"
                )
            notes.append(f"grouped queries: layout {BLOCKED}, because these shapes cannot be interleaved")
            return BLOCKED
        layouts = self._known({INTERLEAVED: frozenset({0}), BLOCKED: frozenset({1, 2})})
        taken = given or layouts
        if taken is None:
            raise ConversionError(
                "grouped queries: the rows of query_key_value have one of two layouts of the same shape, and "
                f"{self._unknown()}: give --gqa-layout interleaved if NeoX was older than 2024-11-14 (commit "
                "96c242eb), --gqa-layout blocked if not"
            )
        self._note("grouped queries: layout", "--gqa-layout", taken, given, layouts, notes)
        if given and not layouts:
            self.add(f"--gqa-layout {given}", frozenset({0}) if given == INTERLEAVED else frozenset({1, 2}))
        return taken

    def rms_epsilon(self, epsilon: float, fused: bool, given: str | None, notes: list[str]) -> str:
        """Return where RMSNorm's epsilon is added; add a note of it with its reason.

        Raises:
            ConversionError: Nothing shows it, and it matters.
        """
        if fused and not given:
            return INSIDE  # apex's kernel
        epsilons = self._known({OUTSIDE: frozenset({0, 1}), INSIDE: frozenset({2})})
        taken = given or epsilons
        if taken is None and epsilon <= NEGLIGIBLE:
            return INSIDE
        if taken is None:
            raise ConversionError(
                f"rms-norm-epsilon {epsilon:g}: it is added outside of the root or inside, and {self._unknown()}: give "
                "--rms-epsilon outside if NeoX was older than 2025-05-09 (commit 4c9f1081), --rms-epsilon inside if not"
            )
        self._note("RMSNorm's epsilon: added", "--rms-epsilon", taken, given, epsilons, notes)
        return taken

    def _known(self, choices: Mapping[str, frozenset[int]]) -> str | None:
        """Return the choice that all findings agree on."""
        possible = [name for name, periods in choices.items() if self.periods & periods]
        return possible[0] if len(possible) == 1 else None

    def _unknown(self) -> str:
        facts = [f"written by DeepSpeed {self.writer}"] if self.writer else []
        more = "; ".join(facts + self.findings)
        return "the checkpoint has no record of NeoX's version that decides it" + (f" ({more})" if more else "")

    def _note(self, what: str, option: str, taken: str, given: str | None, fact: str | None, notes: list[str]) -> None:
        reasons = "; ".join(self.findings)
        if given and fact and given != fact:
            notes.append(f"{what} {taken}, as {option} says, though the checkpoint says {fact}: {reasons}")
        else:
            notes.append(f"{what} {taken}, as {option} says" if given else f"{what} {taken}: {reasons}")


def commit_of(*, outside: bool) -> str:
    """Return a commit of a NeoX with blocked grouped queries.

    ``outside``: where it adds RMSNorm's epsilon.
    """
    return _COMMITS[1 if outside else 2].split()[-1]


def text_in(state: TorchState, name: str) -> str:
    """Return a text of a file's state, or a number as YAML reads a commit of digits.

    Empty for anything else, which may take all memory to be shown.
    """
    value = state.get(name)
    return str(value) if isinstance(value, str | int) else ""


def revision_of(configs: JsonObject, tensors: Iterable[str], state: TorchState) -> Revision:
    """Return what a checkpoint says of the NeoX that wrote it.

    Args:
        configs: The settings, with underscores.
        tensors: Names of the model's tensors in their layers.
        state: Contents of the first rank's ``mp_rank_*_model_states.pt``.
    """
    revision = Revision(writer=text_in(state, "ds_version"))
    for place in (configs, state):
        revision_text = text_in(place, "git_hash")
        commit = revision_text.rpartition("-g")[2][:7].lower()
        for number, commits in enumerate(_COMMITS):
            if commit in commits.split():
                revision.add(f"git_hash is {revision_text}", frozenset({number}))
    for name in sorted(configs):
        if name in _SETTINGS:
            first, last = min(_SETTINGS[name]), max(_SETTINGS[name])
            era = ("2024-11-14", "2025-05-09")
            when = f"before {era[last]}" if last < len(era) else f"since {era[first - 1]}"
            revision.add(f"NeoX accepted {name.replace('_', '-')} only {when}", _SETTINGS[name])
    legacy = next((name for name in tensors if _LEGACY_MLP.search(name)), None)
    if legacy:
        revision.add(f"NeoX had tensors named {legacy} only before 2024-09-07", frozenset({0}))
    return revision
