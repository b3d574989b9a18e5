import pytest

from tfparallel.backends.local import name_substitution


@pytest.mark.parametrize(
    ("template", "expected"),
    [
        ("/output", "/run/o"),
        ("/output/job", "/run/o/job"),
        ("--dir=/output --other=/output/x", "--dir=/run/o --other=/run/o/x"),
        ("file:///output/x", "file:///run/o/x"),
        ("/output2", "/output2"),
        ("/output.txt", "/output.txt"),
        ("look in /output.", "look in /run/o."),
        ("/my/output", "/my/output"),
        ("./output", "./output"),
        ("/workspace/source/model.py", "/home/source/model.py"),
        ("/workspace", "/elsewhere"),
    ],
)
def test_paths_are_replaced_where_they_stand_alone(template: str, expected: str) -> None:
    mounts = name_substitution.Substitution(
        {"/output/": "/run/o", "/workspace": "/elsewhere", "/workspace/source": "/home/source"}
    )
    assert mounts.apply(template) == expected


def test_what_was_replaced_is_not_replaced_again() -> None:
    swapped = name_substitution.Substitution({"/a": "/b", "/b": "/a"})
    assert swapped.apply("/a /b") == "/b /a"


def test_an_address_inside_a_longer_one_is_no_match() -> None:
    addresses = name_substitution.Substitution({"job-worker-1.job:2222": "127.0.0.1:5"})
    assert addresses.apply("grpc://job-worker-1.job:2222") == "grpc://127.0.0.1:5"
    assert addresses.apply("my-job-worker-1.job:2222") == "my-job-worker-1.job:2222"
    assert addresses.apply("job-worker-1.job:22221") == "job-worker-1.job:22221"


def test_nothing_to_replace_leaves_every_text() -> None:
    assert name_substitution.Substitution({}).apply("/output") == "/output"
