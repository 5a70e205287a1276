"""The reason of an attempt's end, in one line."""

from __future__ import annotations

from midstream.launch.rank_view import RankView


def test_job_that_slurm_forgot_is_not_said_to_have_ended() -> None:
    forgotten = RankView(0, "login", log=("job starts on n1",), job="job 16 (UNKNOWN)", job_unknown=True)
    assert "has ended" not in forgotten.why
    assert forgotten.why.endswith("does not know its job 16 (UNKNOWN) any more, and its processes report nothing: "
                                  "job starts on n1")  # fmt: skip
    assert RankView(0, "login", job="job 16 (FAILED)").why == "job 16 (FAILED) has ended: its log is empty"
