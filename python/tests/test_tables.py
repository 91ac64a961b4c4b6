"""Protects tables: labels become indices, whatever holds the table, as they do in ``blco-pack``; they are found again in stores and models."""

import os

import numpy as np
import pytest

import blco

pandas = pytest.importorskip("pandas")
pyarrow = pytest.importorskip("pyarrow")

ROWS = 3000


@pytest.fixture
def frame():
    rng = np.random.default_rng(3)
    return pandas.DataFrame(
        {
            "user": rng.integers(5, 90, ROWS),
            "the, title": rng.choice(["Heat", "Up, up & away", "été", ""], ROWS),
            "time": pandas.to_datetime(rng.integers(1_600_000_000, 1_700_000_000, ROWS), unit="s"),
            "rating": rng.integers(1, 11, ROWS) / 2,
        }
    )


MODES = ["user", "the, title", ("time", "month")]


def pack(source, tmp_path, name="packed.blco", **options):
    return blco.pack(source, tmp_path / name, **{"modes": MODES, "value": "rating", **options})


def summed(frame, rule="sum"):
    """What pandas makes of the table."""
    keys = [frame["user"], frame["the, title"], frame["time"].dt.strftime("%Y-%m")]
    return frame["rating"].groupby(keys).agg(rule)


def rows(store):
    """What is in a store, by its labels."""
    part = store.to_coo()
    users, titles, months = store.labels
    return {(int(users[i]), titles[j], months[k]): value for (i, j, k), value in zip(part.coords.tolist(), part.values.tolist())}


def test_a_frame_becomes_a_tensor_with_labels(frame, tmp_path):
    store = pack(frame, tmp_path)
    assert store.mode_names == ("user", "the, title", "time")
    users, titles, months = store.labels
    assert users == [str(user) for user in sorted(set(frame["user"]))]
    assert titles == sorted(set(frame["the, title"]), key=str.encode)
    first, last = frame["time"].min(), frame["time"].max()
    assert months == [str(month) for month in pandas.period_range(first, last, freq="M")]
    assert rows(store) == pytest.approx(summed(frame).to_dict())


@pytest.mark.parametrize("rule", ["sum", "mean", "min", "max", "count"])
def test_duplicates_are_those_of_pandas(frame, tmp_path, rule):
    store = pack(frame, tmp_path, duplicates=rule)
    assert rows(store) == pytest.approx(summed(frame, rule).to_dict(), rel=1e-12)


def test_all_tables_give_the_same_bytes(frame, tmp_path):
    table = pyarrow.Table.from_pandas(frame)
    frame.to_parquet(tmp_path / "t.parquet")
    frame.to_csv(tmp_path / "t.csv", index=False, quoting=1)
    sources = [frame, table, table.to_reader(max_chunksize=70), tmp_path / "t.parquet", str(tmp_path / "t.csv")]
    sources.append(frame.astype({"the, title": "category", "user": "int16", "rating": "float32"}))
    try:
        import polars

        sources.append(polars.from_arrow(table))
    except ImportError:
        pass
    stores = [pack(source, tmp_path, f"{number}.blco") for number, source in enumerate(sources)]
    assert len({store.stats["digest"] for store in stores}) == 1
    assert all(store.labels == stores[0].labels for store in stores)


def test_labels_are_indices(frame, tmp_path):
    store = pack(frame, tmp_path)
    wanted = summed(frame)
    (user, title, month), value = next(iter(wanted.to_dict().items()))
    assert store[str(user), title, month] == pytest.approx(value)
    users = store.labels[0]
    part = store[users[2] : users[5], title]
    assert part.shape == (4, len(store.labels[2])) and part.values.sum() == pytest.approx(
        sum(v for (u, t, _), v in wanted.items() if t == title and users.index(str(u)) in range(2, 6))
    )
    with pytest.raises(KeyError, match="is no label of mode 1"):
        store[:, "Cold"]
    factors = [np.ones((dim, 2)) for dim in store.shape]
    assert np.array_equal(store.mttkrp(factors, "the, title"), store.mttkrp(factors, 1))
    with pytest.raises(ValueError, match="there are user, the, title, time"):
        store.mttkrp(factors, "film")


def test_models_have_the_labels(frame, tmp_path):
    store = pack(frame, tmp_path)
    model = store.cp(2, max_iters=5)
    assert model.labels == store.labels and model.mode_names == store.mode_names
    label, number = model.top(0, "the, title", 1)[0]
    column = model.factors[1][:, 0]
    assert label == store.labels[1][int(np.argmax(np.abs(column)))] and number in column
    assert "Up, up &amp; away" in model._repr_html_()
    model.save(tmp_path / "model.npz")
    again = blco.load(tmp_path / "model.npz")
    assert again.labels == model.labels and again.top(1, 2) == model.top(1, 2)


def test_nulls_and_what_does_not_serve(frame, tmp_path):
    frame.loc[[4, 9], "rating"] = np.nan
    frame.loc[11, "the, title"] = None
    with pytest.raises(ValueError, match="3 of 3000 rows are incomplete"):
        pack(frame, tmp_path)
    store = pack(frame, tmp_path, nulls="drop")
    assert store.report["rows_dropped"] == 3
    assert rows(store) == pytest.approx(summed(frame.dropna()).to_dict())
    for options, said in [
        ({"modes": ["user", "film"]}, 'no column "film"'),
        ({"modes": ["user", ("time", "fortnight")]}, "fortnight"),
        ({"value": "the, title"}, "is not a number"),
        ({"timezone": "Mars/Olympus"}, "Europe/Zurich"),
    ]:
        with pytest.raises(ValueError, match=said):
            pack(frame, tmp_path, "wrong.blco", nulls="drop", **options)
    assert not os.path.exists(tmp_path / "wrong.blco")
    with pytest.raises(FileNotFoundError):
        pack(tmp_path / "none.csv", tmp_path, "wrong.blco")
    nested = pyarrow.table({"user": [[1], [2]], "x": [1, 2]})
    with pytest.raises(ValueError, match="is nested"):
        pack(nested, tmp_path, "wrong.blco", modes=["user", "x"], value=None)


def test_new_rows_are_numbered_as_an_older_store_does(frame, tmp_path):
    older = pack(frame[:1500], tmp_path, "older.blco", modes=MODES[:2])
    newer = pack(frame, tmp_path, "newer.blco", modes=MODES[:2], labels_from=older.path)
    assert newer.labels[0][: len(older.labels[0])] == older.labels[0]
