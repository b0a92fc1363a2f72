import pytest

from inferometer.measure.engines.hf_folder import write_whole


def write(content):
    return lambda draft: (draft / "file").write_text(content)


def test_a_folder_appears_complete(tmp_path):
    write_whole(tmp_path / "a" / "made", write("content"))
    assert (tmp_path / "a" / "made" / "file").read_text() == "content"
    assert len(list((tmp_path / "a").iterdir())) == 1


def test_who_is_slower_leaves_what_is_there(tmp_path):
    write_whole(tmp_path / "made", write("first"))
    write_whole(tmp_path / "made", write("second"))
    assert (tmp_path / "made" / "file").read_text() == "first"
    assert [path.name for path in tmp_path.iterdir()] == ["made"]


def test_who_fails_leaves_nothing(tmp_path):
    def fail(draft):
        (draft / "half").write_text("")
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        write_whole(tmp_path / "made", fail)
    assert list(tmp_path.iterdir()) == []
