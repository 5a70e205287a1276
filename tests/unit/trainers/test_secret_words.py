"""Secrets of a command line: what is replaced, and that it comes back from the environment."""

from __future__ import annotations

import pytest

from midstream.launch.run_file_draft import Evidence, draft
from midstream.launch.secret_words import secrets_note, without_secrets
from midstream_core.records import RecordError
from midstream_host.driver.command_variables import with_variables
from midstream_host.trainers.processes import TrainerDirectory, TrainingProcess

TOKEN = "hf_" + "aB3" * 8

SECRET = [
    (["train.py", "--token", "abc123"], ["train.py", "--token", "$TOKEN"]),
    (["train.py", "--api-key=abc"], ["train.py", "--api-key=$API_KEY"]),
    (["train.py", "--model_token", TOKEN], ["train.py", "--model_token", "$MODEL_TOKEN"]),
    (["train.py", TOKEN], ["train.py", "$HF_TOKEN"]),
    (["env", "WANDB_API_KEY=0123abc", "python", "t.py"], ["env", "WANDB_API_KEY=$WANDB_API_KEY", "python", "t.py"]),
    (["t.py", "trainer.wandb.api_key=xyz"], ["t.py", "trainer.wandb.api_key=$TRAINER_WANDB_API_KEY"]),
    (["t.py", "--db", "postgres://me:pw@db/x"], ["t.py", "--db", "$SERVICE_URL"]),
    (["t.py", "--aws_secret_access_key", "q/w"], ["t.py", "--aws_secret_access_key", "$AWS_SECRET_ACCESS_KEY"]),
    (["t.py", "--wandb_key", "0a1b"], ["t.py", "--wandb_key", "$WANDB_KEY"]),
    (["t.py", "--upload", '{"id": "me/x", "token": "abc123"}'], ["t.py", "--upload", "$SECRET_WORD"]),
    (["t.py", f"--kwargs=dict(use={TOKEN!r})"], ["t.py", "--kwargs=$HF_TOKEN"]),
    (["t.py", "--data", "https://host/x?api_key=abc&y=1"], ["t.py", "--data", "$SECRET_WORD"]),
    (["t.py", "--header", "Authorization: Bearer abcd.efgh"], ["t.py", "--header", "$SECRET_HEADER"]),
    (["t.py", "-c", "import t; t.main(password='abc')"], ["t.py", "-c", "$SECRET_WORD"]),
]
PLAIN = [
    ["t.py", "--max_tokens", "512", "--tokenizer", "gpt2", "--token_file", "tok.json"],
    ["t.py", "--pad_token", "<pad>", "--eos-token=</s>", "--use_auth_token", "true"],
    ["t.py", "--model", "/models/hf_converted_checkpoint_of_ours", "--data", "s3://bucket/sk-learn-datasets-of-2024"],
    [
        "t.py",
        "--tokenizer",
        '{"pad_token": "<pad>", "max_tokens": 5}',
        "--note",
        "a basic run",
        "--use_auth_token=true",
    ],
    ["t.py", "--lr", "1e-4", "--resume", "{checkpoint}", "--token", "$TOKEN", "--url", "https://host/x@y"],
]


@pytest.mark.parametrize(("words", "shown"), SECRET)
def test_secret_becomes_a_variable_and_comes_back(words: list[str], shown: list[str]) -> None:
    replaced, names = without_secrets(words)
    assert replaced == shown
    [name] = names
    secret = next(a for a, b in zip(words, replaced, strict=True) if a != b)
    value = secret.partition("=")[2] if "=$" in replaced[words.index(secret)] else secret
    assert with_variables(replaced, {name: value}) == words
    assert f'{name}: "env:{name}"' in secrets_note(names)
    assert value not in secrets_note(names)
    with pytest.raises(RecordError, match=rf"the command has \${name}, which is not set \(hint: secrets: "):
        with_variables(replaced, {})


@pytest.mark.parametrize("words", PLAIN)
def test_other_words_stay(words: list[str]) -> None:
    assert without_secrets(words) == (words, [])
    assert secrets_note([]) == ""


def test_one_secret_has_one_name_and_two_have_two() -> None:
    assert without_secrets(["t", "--token", "a", "--other.token=a"])[0] == [
        "t",
        "--token",
        "$TOKEN",
        "--other.token=$TOKEN",
    ]
    assert without_secrets(["t", "--token", "a", "--token", "b"]) == (
        ["t", "--token", "$TOKEN", "--token", "$TOKEN_2"],
        ["TOKEN", "TOKEN_2"],
    )


def test_scripts_of_a_shell_are_left_to_it() -> None:
    words = ["sh", "-c", "train --x $Y && echo $DONE", "a$B", "$lower"]
    assert with_variables(words, {}) == words


def test_run_file_of_a_running_program_has_no_secret() -> None:
    launcher = TrainingProcess(7, 1, 0, ["python", "train.py", "--token", TOKEN], "/usr/bin/python", "/x", [], {})
    text = draft(Evidence(TrainerDirectory("/x", [launcher], ["train.py"], [], None), launcher)).text
    assert TOKEN not in text
    assert "'$TOKEN'" in text
    assert 'secrets: {TOKEN: "env:TOKEN"}' in text
