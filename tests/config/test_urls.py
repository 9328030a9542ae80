"""Which URLs name a folder of an object store, and what is said of the others."""

import pytest

from runner.config import urls


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(urls, "find_spec", lambda name: name)


@pytest.mark.parametrize(
    "url", ["s3://bucket", "s3://bucket/", "gs://my-bucket/a/b.c", "az://container/x=1", "memory://name/a b"]
)
def test_a_bucket_and_a_folder_are_valid(url: str) -> None:
    assert urls.problem(url) is None


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("http://host/x", "must begin with s3://"),
        ("S3://bucket/x", "must begin with s3://"),
        ("s3://user:hunter2@bucket/x", "must not contain a user or password"),
        ("s3://bucket/x?X-Amz-Signature=hunter2", "must not be a signed URL"),
        ("az://container/x#hunter2", "must not be a signed URL"),
        ("s3://", "must name a bucket"),
        ("s3:/bucket/x", "must begin with s3://"),
        ("az:///x", "must name a container"),
        ("s3://bucket//x", "must have names"),
        ("s3://bucket/../x", "must have names"),
        ("s3://bucket/x*", "must have names"),
    ],
)
def test_others_are_rejected_and_no_secret_is_repeated(url: str, problem: str) -> None:
    assert urls.is_url(url), "no local path"
    found = urls.problem(url)
    assert found is not None
    assert found.startswith(problem)
    assert "hunter2" not in found


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(urls, "find_spec", lambda _: None)
    assert "pip install 'mesh-runner[stores]'" in str(urls.problem("s3://bucket"))
