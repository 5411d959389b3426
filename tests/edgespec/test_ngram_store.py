import hashlib
import os
import struct
import threading
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from edgespec import ngram_store
from edgespec.errors import NgramFileError
from edgespec.ngram_store import MAX_NGRAM, NgramStore, ngram_keys

SHA, OTHER = "ab" * 32, "cd" * 32
Counts = dict[tuple[int, ...], Counter[int]]


def key(*gram: int) -> int:
    return ngram_keys(gram)[-1]


def counted(texts: list[list[int]], start: int = 0) -> Counts:
    """What followed each n-gram, by looking at every place."""
    found: Counts = {}
    for text in texts:
        for n in range(1, MAX_NGRAM + 1):
            for place in range(max(n, start), len(text)):
                found.setdefault(tuple(text[place - n : place]), Counter())[text[place]] += 1
    return found


def stored(texts: list[list[int]], **options: int) -> NgramStore:
    store = NgramStore(SHA, **options)
    for text in texts:
        store.add(np.array(text, np.int64))
    return store


def contents(store: NgramStore) -> list[tuple[int, int, int]]:
    rows = store.entries()
    return list(zip(rows.keys.tolist(), rows.tokens.tolist(), rows.counts.tolist(), strict=True))


def random_texts(seed: int, count: int = 6) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, 4, rng.integers(0, 60)).tolist() for _ in range(count)]


class TestCounting:
    def test_what_followed_an_n_gram_is_counted(self) -> None:
        store = stored([[1, 2, 3, 1, 2, 4, 1, 2, 3]])
        assert store.best(key(1, 2)) == (3, 2, 3)
        assert store.best(key(3, 1, 2)) == (4, 1, 1)
        assert store.best(key(9)) is None
        assert store.top(key(2)) == {3: 2, 4: 1}
        assert store.top(key(9)) == {}
        assert store.num_tokens == 9

    def test_texts_do_not_run_into_each_other(self) -> None:
        assert stored([[1, 2], [3, 4]]).best(key(2)) is None

    def test_tokens_before_the_start_are_context_alone(self) -> None:
        store = NgramStore()
        store.add(np.array([1, 2, 3, 4, 5]), 3)
        assert store.best(key(1, 2)) is None
        assert store.best(key(1, 2, 3)) == (4, 1, 1)
        assert store.best(key(4)) == (5, 1, 1)
        assert store.num_tokens == 2

    @pytest.mark.parametrize("waiting", [0, 20, 10_000], ids=["sorted in", "both", "waiting"])
    def test_the_counts_are_those_of_a_recount(
        self, waiting: int, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(ngram_store, "_RECENT", waiting)
        for seed in range(10):
            texts = random_texts(seed)
            store = stored(texts)
            for gram, after in counted(texts).items():
                assert store.top(key(*gram)) == after
                best = store.best(key(*gram))
                assert best is not None
                token, count, total = best
                assert (count, total) == (after[token], after.total())
                if 2 * max(after.values()) >= total:
                    assert (-count, token) == min((-c, t) for t, c in after.items())
            assert sum(store.num_entries().values()) == sum(map(len, counted(texts).values()))

    def test_every_n_gram_has_a_key_of_its_own(self) -> None:
        rng = np.random.default_rng(0)
        grams = {tuple(g) for n in (1, 2, 3, 4) for g in rng.integers(0, 200, (3000, n)).tolist()}
        grams |= {(t,) for t in range(300_000)}
        assert len({key(*gram) for gram in grams}) == len(grams)

    def test_large_token_ids_have_the_same_key_in_a_text_and_alone(self) -> None:
        tokens = [2**31 - 1, 250_000, 2**31 - 2, 0, 151_935]
        store = stored([tokens])
        assert store.best(key(*tokens[:4])) == (151_935, 1, 1)

    def test_threads_share_a_store(self) -> None:
        store = NgramStore(max_entries=50)
        text = np.arange(40) % 5

        def add() -> None:
            for _ in range(30):
                store.add(text)

        threads = [threading.Thread(target=add) for _ in range(4)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            assert store.best(key(3)) in [None, *((4, 8 * n, 8 * n) for n in range(121))]
        assert store.best(key(3)) == (4, 8 * 120, 8 * 120)


class TestBounds:
    def test_the_rarest_are_forgotten(self) -> None:
        store = stored([[1, 2], [1, 2], [3, 4], [5, 6], [5, 6]], max_entries=2)
        store.entries()
        assert (store.best(key(1)), store.best(key(5))) == ((2, 2, 2), (6, 2, 2))
        assert store.best(key(3)) is None

    def test_of_equally_rare_ones_what_is_new_stays(self) -> None:
        store = NgramStore(max_entries=3)
        for first in range(10, 40, 2):
            store.add(np.array([first, first + 1]))
            store.entries()  # sorts in
            assert store.best(key(first)) == (first + 1, 1, 1)
        assert len(contents(store)) == 3

    def test_a_store_stays_within_its_bound(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ngram_store, "_RECENT", 100)
        rng = np.random.default_rng(1)
        store = NgramStore(max_entries=500)
        for _ in range(50):
            store.add(rng.integers(0, 1000, 100))
            assert sum(len(rows.keys) for rows in store._tables) <= 600
        assert sum(store.num_entries().values()) == 500

    def test_a_count_that_would_not_fit_stays_the_largest(self) -> None:
        rows = stored([[1, 2]]).entries()
        full = ngram_store._Rows(rows.keys, rows.tokens, np.array([2**32 - 1], np.uint32))
        assert ngram_store._tally(full, rows).counts.tolist() == [2**32 - 1]

    def test_a_bound_that_cannot_be_meant_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"^max_entries must be at least 1, got 0$"):
            NgramStore(max_entries=0)


class TestMerge:
    def test_both_count(self) -> None:
        for seed in range(5):
            texts = random_texts(seed)
            merged = stored(texts[:3])
            merged.merge(stored(texts[3:]))
            assert contents(merged) == contents(stored(texts))
            assert merged.num_tokens == sum(map(len, texts))

    def test_the_bound_holds(self) -> None:
        merged = stored([[1, 2], [3, 4]], max_entries=2)
        merged.merge(stored([[1, 2], [5, 6], [5, 6]]))
        assert [(token, count) for _, token, count in contents(merged)] in (
            [(2, 2), (6, 2)],
            [(6, 2), (2, 2)],
        )

    def test_a_store_can_be_added_to_itself(self) -> None:
        store = stored([[1, 2]])
        store.merge(store)
        assert (store.best(key(1)), store.num_tokens) == ((2, 2, 2), 4)

    def test_other_tokens_are_refused(self) -> None:
        said = (
            r"^n-grams of the tokenizers abababababab\.\.\. and \(unknown\) "
            "cannot be merged: their token ids differ$"
        )
        with pytest.raises(NgramFileError, match=said):
            NgramStore(SHA).merge(NgramStore())


class TestFile:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        path = tmp_path / "m\u00f6del n-grams.bin"
        stored(random_texts(3), max_entries=9_000).save(path)
        return path

    def test_what_was_saved_is_loaded(self, path: Path) -> None:
        store = stored(random_texts(3), max_entries=9_000)
        again = NgramStore.load(path, tokenizer_sha256=SHA)
        assert contents(again) == contents(store)
        assert (again.num_tokens, again.max_entries) == (store.num_tokens, 9_000)
        assert again.tokenizer_sha256 == SHA
        again.add(np.array([1, 2, 3]))  # and goes on
        store.add(np.array([1, 2, 3]))
        assert contents(again) == contents(store)

    def test_equal_stores_are_equal_files(self, path: Path, tmp_path: Path) -> None:
        stored(random_texts(3)[::-1], max_entries=9_000).save(tmp_path / "again")
        assert (tmp_path / "again").read_bytes() == path.read_bytes()

    def test_an_empty_store_and_one_of_no_tokenizer_are_files_too(self, tmp_path: Path) -> None:
        NgramStore().save(tmp_path / "empty")
        again = NgramStore.load(tmp_path / "empty", tokenizer_sha256=SHA)
        assert (contents(again), again.tokenizer_sha256) == ([], None)

    def test_a_file_that_cannot_be_finished_leaves_the_old_one(
        self, path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        before = path.read_bytes()

        def full(_: int) -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(os, "fsync", full)
        with pytest.raises(NgramFileError, match=r"cannot be written: No space left on device$"):
            stored([[1, 2]]).save(path)
        assert path.read_bytes() == before
        assert list(path.parent.iterdir()) == [path]

    def test_a_folder_that_is_not_there_is_said(self, tmp_path: Path) -> None:
        with pytest.raises(NgramFileError, match="grams cannot be written: No such file or dir"):
            stored([]).save(tmp_path / "none" / "grams")

    def test_a_cut_file_is_noticed_wherever_it_is_cut(self, path: Path) -> None:
        content = path.read_bytes()
        for length in [8, 20, 67, 68, 100, len(content) - 33, len(content) - 1]:
            path.write_bytes(content[:length])
            with pytest.raises(
                NgramFileError, match=rf"should have \d+ bytes, it has {length}; build it again"
            ):
                NgramStore.load(path)
        path.write_bytes(content + b"\n")
        with pytest.raises(NgramFileError, match=f"should have {len(content)} bytes, it has"):
            NgramStore.load(path)

    def test_any_damaged_byte_is_noticed(self, path: Path) -> None:
        content = path.read_bytes()
        for at in range(0, len(content), 7):
            damaged = bytearray(content)
            damaged[at] ^= 1
            path.write_bytes(damaged)
            with pytest.raises(NgramFileError):
                NgramStore.load(path)

    @pytest.mark.parametrize(
        ("change", "said"),
        [
            (lambda c: b"", "is no file of n-grams; edgespec ngrams build writes one"),
            (lambda c: b"PK\x03\x04" + c, "is no file of n-grams; edgespec ngrams build writes"),
            (
                lambda c: c[:8] + struct.pack("<I", 2) + c[12:-100],
                "has format 2, this edgespec reads 1; update edgespec, or build it again: "
                "edgespec ngrams build",
            ),
            (
                lambda c: c[:200] + bytes([c[200] ^ 8]) + c[201:],
                "is damaged: its checksum does not fit; build it again: edgespec ngrams build",
            ),
        ],
        ids=["empty", "another file", "newer", "damaged"],
    )
    def test_the_sentence_says_what_is_wrong(self, path: Path, change: object, said: str) -> None:
        assert callable(change)
        path.write_bytes(change(path.read_bytes()))
        with pytest.raises(NgramFileError) as raised:
            NgramStore.load(path)
        assert str(raised.value).startswith(f"{path} {said}")

    def test_entries_out_of_order_are_noticed(self, path: Path) -> None:
        content = bytearray(path.read_bytes()[:-32])
        content[68:76], content[76 + 8 * 50 : 84 + 8 * 50] = (
            content[76 + 8 * 50 : 84 + 8 * 50],
            content[68:76],
        )
        path.write_bytes(content + hashlib.sha256(content).digest())
        with pytest.raises(NgramFileError, match="holds entries out of order; build it again"):
            NgramStore.load(path)

    def test_a_missing_file_is_said(self, tmp_path: Path) -> None:
        with pytest.raises(
            NgramFileError, match=r"none cannot be read: No such file or directory$"
        ):
            NgramStore.load(tmp_path / "none")

    def test_another_tokenizer_is_refused(self, path: Path) -> None:
        with pytest.raises(NgramFileError) as raised:
            NgramStore.load(path, tokenizer_sha256=OTHER)
        assert str(raised.value) == (
            f"{path} was counted with the tokenizer abababababab..., the model has "
            "cdcdcdcdcdcd...; build it again: edgespec ngrams build"
        )
        with pytest.raises(NgramFileError, match=r"^the n-gram store was counted with the tok"):
            NgramStore(SHA).require_tokenizer(OTHER)
