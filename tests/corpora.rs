//! Replays what fuzzing has kept (fuzz/corpus) and the inputs that once broke something through the bodies of the fuzz
//! targets, on the stable toolchain.

#![allow(clippy::unwrap_used, reason = "a test ends where something fails")]

#[path = "../fuzz/bodies.rs"]
mod bodies;

use std::path::Path;

/// Calls `body` with every input that is kept for `target`.
fn replay(target: &str, body: fn(&[u8])) {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let mut inputs = 0;
    for entry in std::fs::read_dir(&dir).unwrap() {
        let path = entry.unwrap().path();
        let input = std::fs::read(&path).unwrap();
        let held = std::panic::catch_unwind(|| body(&input));
        assert!(held.is_ok(), "{}", path.display());
        inputs += 1;
    }
    assert!(inputs >= 10, "{}: {inputs} inputs", dir.display());
}

#[test]
fn text() {
    replay("text", bodies::text);
}

#[test]
fn manifest() {
    replay("manifest", bodies::manifest);
}

#[test]
fn chunk() {
    replay("chunk", bodies::chunk);
}

#[test]
fn npy() {
    replay("npy", bodies::npy);
}
