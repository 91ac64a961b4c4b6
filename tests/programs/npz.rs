//! Establishes that NumPy archives of coordinates, as `blco-export`, `sparse` and `SciPy` write them, become the tensors that they hold.

use crate::programs::{program, python};
use crate::tables::run;
use std::path::Path;
use std::process::Command;

fn digest(dir: &Path, input: &str) -> String {
    let report = program("blco-pack", dir, &[input, "-o", "o.blco", "--force"]);
    report["digest"].as_str().unwrap().to_owned()
}

#[test]
fn what_was_exported_is_packed_to_the_same_store() {
    let dir = tempfile::tempdir().unwrap();
    program("blco-gen", dir.path(), &["--dims", "40,50,60", "--nnz", "70000", "t.tns"]);
    let wanted = digest(dir.path(), "t.tns");
    program("blco-export", dir.path(), &["o.blco", "t.npz"]);
    assert_eq!(digest(dir.path(), "t.npz"), wanted);
    let whole = std::fs::read(dir.path().join("t.npz")).unwrap();
    for end in [0, 100, whole.len() / 2, whole.len() - 1] {
        std::fs::write(dir.path().join("t.npz"), &whole[..end]).unwrap();
        refused(dir.path(), "t.npz", &["t.npz: is no NumPy archive, or not whole"]);
    }
}

fn refused(dir: &Path, name: &str, words: &[&str]) {
    let output = run("blco-pack", dir, &[name, "-o", "x.blco"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(2), "{said}");
    assert!(words.iter().all(|word| said.contains(word)), "{words:?}: {said}");
    assert_eq!(said.trim_end().lines().count(), 1, "{said}");
}

/// Archives as `sparse.save_npz` and `scipy.sparse.save_npz` write them, by their documented arrays: compressed, in both orders
/// of memory and with integers of every kind; and wrong ones.
#[test]
fn archives_of_others_are_read() {
    let Some(python) = python() else { return };
    let dir = tempfile::tempdir().unwrap();
    let script = r#"
import numpy as np
rng = np.random.default_rng(5)
dims = (30, 40, 50)
flat = rng.choice(30 * 40 * 50, 20000, replace=False)
coords = np.array(np.unravel_index(flat, dims))
values = rng.integers(-9, 10, 20000).astype(np.int16)
np.savetxt("t.tns", np.column_stack([coords.T + 1, values]), fmt="%d", header=" ".join(map(str, dims)), comments="3\n")
save = lambda name, **more: np.savez_compressed(name, **{**dict(coords=coords, data=values, shape=np.array(dims), fill_value=np.int16(0)), **more})
save("a.npz")
save("b.npz", coords=np.asfortranarray(coords.astype(np.uint8)), data=values.astype(np.float32))
save("c.npz", coords=coords.astype(">i4"), data=values.astype(">f8"))
np.savez("d.npz", indices=coords.T.astype("u4"), values=values.astype("f8"), dims=np.array(dims, "u8"))
np.savez("e.npz", row=coords[0], col=coords[1], data=values, shape=(30, 40), format=np.array(b"coo"))
np.savetxt("e.tns", np.column_stack([coords[:2].T + 1, values]), fmt="%d", header="30 40", comments="2\n")
save("fill.npz", fill_value=np.float64(1.5))
save("outside.npz", shape=np.array((30, 40, 49)))
save("below.npz", coords=coords - 1)
save("short.npz", data=values[:-1])
save("order.npz", shape=np.array((30, 40)))
save("text.npz", coords=coords.astype(str))
save("nan.npz", data=np.where(values == 9, np.nan, values))
np.savez("csr.npz", indptr=[0], indices=[0], data=[1.0], shape=(3, 3), format=np.array(b"csr"))
"#;
    let made = Command::new(python).current_dir(dir.path()).args(["-c", script]).output().unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let wanted = digest(dir.path(), "t.tns");
    for name in ["a.npz", "b.npz", "c.npz", "d.npz"] {
        assert_eq!(digest(dir.path(), name), wanted, "{name}");
    }
    assert_eq!(digest(dir.path(), "e.npz"), digest(dir.path(), "e.tns"));
    for (name, words) in [
        ("fill.npz", &["fill value is not 0"][..]),
        ("outside.npz", &["nonzero ", "49 is no index of mode 3, which has 49"]),
        ("below.npz", &["-1 is no index of mode"]),
        ("short.npz", &["20000 nonzeros have coordinates, and 19999 values"]),
        ("order.npz", &["not of order 2"]),
        ("text.npz", &["array \"coords\" holds", "not integers"]),
        ("nan.npz", &["NaN is not a finite number"]),
        ("csr.npz", &["indptr", "tocoo()"]),
    ] {
        refused(dir.path(), name, words);
    }
}
