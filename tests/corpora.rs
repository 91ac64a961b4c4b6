//! Replays what fuzzing has kept (fuzz/corpus) and the inputs that once broke something through the bodies of the fuzz
//! targets, on the stable toolchain.

#![allow(clippy::unwrap_used, reason = "a test ends where something fails")]

#[path = "../fuzz/bodies.rs"]
mod bodies;
#[path = "../fuzz/models.rs"]
mod models;

use blco::random::Counter;
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
    replay_changed("chunk", bodies::chunk);
}

#[test]
fn npy() {
    replay("npy", bodies::npy);
}

/// Inputs that are kept, and as many others as `BLCO_CHANGED` says made of each by changing some bytes.
fn replay_changed(target: &str, body: fn(&[u8])) {
    replay(target, body);
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target);
    let mut paths: Vec<_> = std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path()).collect();
    paths.sort();
    let rounds = std::env::var("BLCO_CHANGED").map_or(4, |text| text.parse().unwrap());
    for (number, path) in paths.iter().enumerate() {
        let kept = std::fs::read(path).unwrap();
        for round in 0..rounds {
            let random = Counter::new(number as u64, round);
            let mut input = kept.clone();
            for change in 0..=random.bits(0) % 4 {
                let [at, bit] = [1, 2].map(|k| random.bits(2 * change + k));
                let length = input.len() as u64;
                input[usize::try_from(at % length).unwrap()] ^= 1 << (bit % 8);
            }
            let held = std::panic::catch_unwind(|| body(&input));
            assert!(held.is_ok(), "{}, round {round}", path.display());
        }
    }
}

#[test]
fn checkpoint() {
    replay_changed("checkpoint", models::checkpoint);
}

#[test]
fn score() {
    replay_changed("score", models::models);
}
