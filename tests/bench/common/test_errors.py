"""What is said of an error, and what is never kept of it."""

import pytest

from bench.common.errors import LONGEST_LINE, is_secret, one_line, scrubbed

PRIVATE = [
    ("cannot open /srv/people/ada/data/x.txt", "cannot open ~/data/x.txt"),
    ("/srv/people/ada", "~"),
    ("/srv/people/adam/x and /srv/people/ada.old", "/srv/people/adam/x and /srv/people/ada.old"),
    ("File '/home/ada/x.py', line 3", "File '~/x.py', line 3"),
    ("/Users/ada/x:/home/bob", "~/x:~"),
    (r"C:\Users\ada\x", r"~\x"),
    ("http://ada:hunter2@host:80/x", "http://host:80/x"),
    ("postgresql+psycopg2://ada:p@ss@host/db", "postgresql+psycopg2://host/db"),
    ("two: http://a:b@c and s3://key@bucket/d", "two: http://c and s3://bucket/d"),
    ("GET https://host/x?access_token=abc&n=1#top", "GET https://host/x?access_token=...&n=1#top"),
    ("http://host/?n=1&api_key=abc", "http://host/?n=1&api_key=..."),
]
HARMLESS = ["ada@host", "q @ k.mT", "http://host/@x", "/homes/x", "seq_len=64", "https://host/x?monkeys=3", ""]


@pytest.fixture(autouse=True)
def home(monkeypatch):
    monkeypatch.setenv("HOME", "/srv/people/ada")


@pytest.mark.parametrize(("text", "kept"), [*PRIVATE, *zip(HARMLESS, HARMLESS, strict=True)])
def test_no_home_folder_and_no_credential_is_kept_and_everything_else_is(text, kept):
    assert scrubbed(text) == kept
    assert scrubbed(kept) == kept


SECRETS = "token hub.api_key hfToken inputs.hf_token +x.password DB_PASSWD aws-secret-access-key ++a.auth"
NO_SECRETS = "tokens_per_batch bench.num_tokens key attention.num_keys inputs.author tracking.uri seed"


def test_the_words_of_a_key_say_that_it_is_a_secret():
    assert [key for key in SECRETS.split() if not is_secret(key)] == []
    assert [key for key in NO_SECRETS.split() if is_secret(key)] == []


def test_a_home_that_is_everything_is_none(monkeypatch):
    for home in ("/", ""):
        monkeypatch.setenv("HOME", home)
        assert scrubbed("/usr/lib/x.py / y") == "/usr/lib/x.py / y"


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("first\nsecond", "first"),
        ("first\x85second\u2028third", "first"),
        ("before \udc80\ud800 after", "before ?? after"),
        ("\x1b[2J clear \x07\x00 | cell", "?[2J clear ?? | cell"),
        ("long" * 2_500_000, f"{'long' * (LONGEST_LINE // 4)} ..."),
        ("", "ValueError"),
    ],
)
def test_an_error_is_one_line_that_every_terminal_takes(text, line):
    assert one_line(ValueError(text)) == line
