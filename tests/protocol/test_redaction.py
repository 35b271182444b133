"""What of a command line is recorded: no value that looks like a secret, and all others."""

from __future__ import annotations

import pytest

from ddptop.protocol.redaction import HIDDEN, redact_words

S = "s3cr3t-VALUE"


@pytest.mark.parametrize(
    "words",
    [
        ["--api-key", S],
        ["--api_key", S, "--lr", "0.1"],
        [f"--password={S}"],
        [f"--password={S} with, a=b&c"],
        [f"token={S}"],
        ["--hf-token", S],
        ["-token", S],
        ["--hfToken", f"-{S}"],
        ["--use-auth-token", S],
        ["--secrets", S, S, S],
        ["--client-secret", S],
        ["--db-passwd", S],
        ["--gcp-credentials-file", S],
        ["--auth", f"user:{S}"],
        ["--wandb_key", S],
        ["--key", S],
        [f"AWS_SECRET_ACCESS_KEY={S}", "python", "train.py"],
        [f"++model.apiKey={S}"],
        ["--config", f'{{"api_key": "{S}", "lr": 1}}'],
        ["bash", "-c", f"train --api-key {S} --password={S} && PGPASSWORD={S} psql"],
        ["--db", f"postgresql://me:{S}@host/db"],
        ["--url", f"https://host/x?lr=1&access_token={S}"],
        ["--header", f"Authorization: Bearer {S}"],
        ["hf_abcdefghijklmnop" + S],
        ["AKIAIOSFODNN7EXAMPLE" + S],
    ],
)
def test_no_secret_is_left(words: list[str]) -> None:
    redacted = redact_words(["train.py", *words, "--epochs", "3"])
    assert S not in " ".join(redacted)
    assert HIDDEN in " ".join(redacted)
    assert redacted[0] == "train.py" and redacted[-2:] == ["--epochs", "3"]
    assert len(redacted) == len(words) + 3


@pytest.mark.parametrize(
    "words",
    [
        ["--lr", "0.1", "--name=x"],
        ["--author", "me", "--keyboard", "us", "--passes", "3", "--sort-key", "loss"],
        ["--tokenizer", "gpt2", "--max-tokens", "4096", "--pad-token", "<pad>", "--eos-token-id=2"],
        ["model.lr=1", "+data.path=/x", "--optimizer", "adam", "https://host/path?page=2"],
        ["--flag", "--other", "a b c", "-x", ""],
    ],
)
def test_all_else_stays_as_it_is(words: list[str]) -> None:
    assert redact_words(words) == words


def test_an_option_without_a_value_hides_no_other_option() -> None:
    assert redact_words(["--use-auth", "--lr", "0.1"]) == ["--use-auth", "--lr", "0.1"]
