//! Replays the corpus of fuzzing (fuzz/corpus) and inputs that once failed, through the bodies of the fuzz
//! targets, on the stable toolchain.

use blco::internals::random::Counter;
use std::path::Path;

/// Calls `body` with every stored input of `target`.
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
    replay("text", crate::bodies::text);
}

#[test]
fn manifest() {
    replay("manifest", crate::bodies::manifest);
}

#[test]
fn chunk() {
    replay_changed("chunk", crate::bodies::chunk);
}

#[test]
fn npy() {
    replay("npy", crate::bodies::npy);
}

/// Stored inputs, and for each, `BLCO_CHANGED` others with some changed bytes.
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
    replay_changed("checkpoint", crate::models::checkpoint);
}

#[test]
fn score() {
    replay_changed("score", crate::models::models);
}

#[test]
fn journal() {
    replay("journal", crate::bodies::resume::journal);
}

#[test]
fn spill() {
    replay("spill", crate::bodies::resume::spill);
}

/// Changes some bits, or a number, of `bytes`.
fn change(bytes: &mut Vec<u8>, random: Counter) {
    let at = |k: u64, length: usize| usize::try_from(random.bits(k) % length as u64).unwrap();
    let place = at(1, bytes.len());
    match random.bits(0) % 4 {
        0 => bytes[place] ^= 1 << (random.bits(2) % 8),
        1 => bytes.truncate(place),
        2 => drop(bytes.splice(place..place, [b"0"[0]; 3])),
        _ => {
            let extremes = [0, 1, 255, 256, u64::from(u32::MAX), 1 << 53, i64::MAX.unsigned_abs(), u64::MAX];
            let number = extremes[at(2, extremes.len())].to_le_bytes();
            let end = (place + 1 + at(3, 8)).min(bytes.len());
            bytes[place..end].copy_from_slice(&number[..end - place]);
        }
    }
}

/// A journal's line with a number changed.
fn change_number(line: &str, random: Counter) -> String {
    let is_digit = |c: char| c.is_ascii_digit();
    let starts: Vec<usize> = line
        .char_indices()
        .filter(|&(at, c)| is_digit(c) && !line[..at].ends_with(is_digit))
        .map(|(at, _)| at)
        .collect();
    let start = starts[usize::try_from(random.bits(4) % starts.len() as u64).unwrap()];
    let end = line[start..].find(|c| !is_digit(c)).map_or(line.len(), |length| start + length);
    let number: u64 = line[start..end].parse().unwrap_or(0);
    let others = [0, 1, u64::MAX, number.wrapping_add(1), number.wrapping_sub(1), number << 1, 1 << 40];
    let other = others[usize::try_from(random.bits(5) % others.len() as u64).unwrap()];
    format!("{}{other}{}", &line[..start], &line[end..])
}

/// Resuming with a journal or temporary files that were changed gives the store that an undisturbed pack writes, to the byte,
/// or an error, even if a file's frames have correct checksums again. Only with the key from the pack's private directory, which
/// signs the journal, can the store be another one. It is then whole.
#[test]
fn mutants_of_a_killed_pack_are_resumed_right_or_refused() {
    use crate::bodies::resume::{killed, resume, seal_frames, signed};
    let mutants = std::env::var("BLCO_MUTANTS").map_or(2000, |text| text.parse().unwrap());
    let killed = killed();
    let journal = signed(&killed.journal);
    assert!(resume(&journal, &killed.files).unwrap() == killed.store);
    let (mut right, mut refused, mut others) = (0, 0, 0);
    for mutant in 0..mutants {
        let random = Counter::new(mutant, 11);
        let (mut lines, mut files, mut text) =
            (killed.journal.clone(), killed.files.clone(), journal.clone());
        let name = ["run-2", "staged-1"][usize::try_from(random.bits(9) % 2).unwrap()];
        let line = usize::try_from(random.bits(8) % lines.len() as u64).unwrap();
        let kind = mutant % 5;
        match kind {
            0 => change(&mut text, random),
            1 => change(files.get_mut(name).unwrap(), random),
            2 | 3 => {
                let bytes = files.get_mut(name).unwrap();
                let before = (bytes.len(), seal_frames(bytes));
                change(bytes, random);
                let after = (bytes.len(), seal_frames(bytes));
                if kind == 3 {
                    let done = |(bytes, (nnz, checksum)): (usize, (u64, u64))| {
                        format!(r#""nnz":{nnz},"bytes":{bytes},"checksum":{checksum}"#)
                    };
                    for line in &mut lines {
                        *line = line.replace(&done(before), &done(after));
                    }
                    text = signed(&lines);
                }
            }
            _ => {
                lines[line] = change_number(&lines[line], random);
                text = signed(&lines);
            }
        }
        let outcome = std::panic::catch_unwind(|| resume(&text, &files));
        match outcome.unwrap_or_else(|_| panic!("mutant {mutant}")) {
            Ok(store) if store == killed.store => right += 1,
            Ok(_) => {
                assert!(kind >= 3, "mutant {mutant} gives another store");
                others += 1;
            }
            Err(error) => {
                assert!(!error.to_string().contains('\n'), "mutant {mutant}: {error}");
                refused += 1;
            }
        }
    }
    println!("{mutants} mutants: {right} right, {refused} refused, {others} other stores by the key");
    assert!(right > 0 && refused > mutants / 2 && others > 0);
}
