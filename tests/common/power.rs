//! The states in which a loss of power may leave a directory, computed from a record of its changes.
//!
//! What was synced before survives. Of the rest, anything may survive:
//!
//! * names (created, renamed, exchanged, removed): in any number, in the order in which they were given within one directory
//!   ([`Names::InOrder`]), or each name by itself ([`Names::Alone`]); a rename is one step, in both directories or in neither,
//!   and durable when either of them is synced; syncing a file does not make its name durable;
//! * contents: as they were after any of the writes, at that length or with zeros up to the last length; any pages of 4096
//!   bytes without the others; cut off at any page.
//!
//! Power can be lost at any moment. Only a sync removes states, so those right before each sync and at the end
//! are all states. They are enumerated up to [`Losses::limit`] at each such moment and drawn with a seed beyond. Equal ones are tried once.

use super::common::tree;
use blco::internals::random::Counter;
use blco::internals::sys::record::Step;
use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::OsString;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use xxhash_rust::xxh3::xxh3_64;

const PAGE: usize = 4096;

/// The order in which names that are not durable survive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Names {
    /// Those of one directory in the order in which they were given; directories independently.
    InOrder,
    /// Every name independently.
    Alone,
}

/// A file or directory, by its place in [`Trace::nodes`].
type Node = usize;

/// The contents of a node before the record; nodes that are created later begin empty.
#[derive(Clone, Debug)]
enum Held {
    File(Rc<Vec<u8>>),
    Directory(BTreeMap<OsString, Node>),
}

/// One indivisible change.
#[derive(Debug)]
enum Change {
    /// From now on, these names in these directories lead to these nodes, or to nothing.
    Names(Vec<(Node, OsString, Option<Node>)>),
    Write {
        node: Node,
        offset: usize,
        bytes: Vec<u8>,
    },
    Sync(Node),
    SyncAll,
}

/// A directory before the record, with the numbers of its entries.
#[derive(Clone)]
pub struct Before {
    root: PathBuf,
    nodes: Vec<Held>,
    by_inode: HashMap<u64, Node>,
}

impl Before {
    /// Everything in `root` now. It counts as durable.
    pub fn of(root: &Path) -> Self {
        let mut before = Self { root: root.to_path_buf(), nodes: Vec::new(), by_inode: HashMap::new() };
        before.scan(root);
        before
    }

    fn scan(&mut self, path: &Path) -> Node {
        let facts = path.symlink_metadata().unwrap();
        let node = self.nodes.len();
        self.by_inode.insert(facts.ino(), node);
        self.nodes.push(Held::Directory(BTreeMap::new()));
        self.nodes[node] = if facts.is_dir() {
            let entries = path.read_dir().unwrap().map(Result::unwrap);
            Held::Directory(entries.map(|e| (e.file_name(), self.scan(&e.path()))).collect())
        } else {
            Held::File(Rc::new(std::fs::read(path).unwrap()))
        };
        node
    }
}

/// The changes in a directory, name by name and write by write.
pub struct Trace {
    root: PathBuf,
    nodes: Vec<Held>,
    /// The numbers that the system gave the nodes.
    inodes: Vec<u64>,
    changes: Vec<Change>,
    /// The number of changes before each promise.
    promises: Vec<usize>,
}

/// Resolves paths while the steps are repeated.
struct Replay {
    root: PathBuf,
    now: Vec<Held>,
    inodes: Vec<u64>,
    by_inode: HashMap<u64, Node>,
    changes: Vec<Change>,
}

impl Replay {
    /// The directory that holds the last name of `path`, and that name.
    fn slot(&self, path: &Path) -> (Node, OsString) {
        let within =
            path.strip_prefix(&self.root).unwrap_or_else(|_| panic!("{} lies elsewhere", path.display()));
        let mut at = 0;
        for name in within.parent().unwrap() {
            at = self.names(at)[name];
        }
        (at, within.file_name().unwrap().to_owned())
    }

    fn names(&self, directory: Node) -> &BTreeMap<OsString, Node> {
        match &self.now[directory] {
            Held::Directory(names) => names,
            Held::File(_) => panic!("a file where a directory was"),
        }
    }

    fn at(&self, path: &Path) -> Option<Node> {
        let (directory, name) = self.slot(path);
        self.names(directory).get(&name).copied()
    }

    fn name(&mut self, slots: Vec<((Node, OsString), Option<Node>)>) {
        let slots: Vec<_> = slots.into_iter().map(|((directory, name), to)| (directory, name, to)).collect();
        apply_names(&mut self.now, &slots);
        self.changes.push(Change::Names(slots));
    }

    /// Removes a name, and a directory's entries before the directory.
    fn remove(&mut self, (directory, name): (Node, OsString)) {
        let Some(&node) = self.names(directory).get(&name) else { return };
        if let Held::Directory(names) = &self.now[node] {
            for inner in names.keys().cloned().collect::<Vec<_>>() {
                self.remove((node, inner));
            }
        }
        self.name(vec![((directory, name), None)]);
    }

    fn take(&mut self, step: &Step) {
        let known = |inode: &u64| *self.by_inode.get(inode).expect("something passed the seam by");
        match step {
            Step::Create { path, inode, directory } => {
                let node = self.now.len();
                self.now.push(if *directory {
                    Held::Directory(BTreeMap::new())
                } else {
                    Held::File(Rc::new(Vec::new()))
                });
                self.inodes.push(*inode);
                self.by_inode.insert(*inode, node);
                self.name(vec![(self.slot(path), Some(node))]);
            }
            Step::Write { inode, offset, bytes } => {
                let (node, offset) = (known(inode), usize::try_from(*offset).unwrap());
                self.changes.push(Change::Write { node, offset, bytes: bytes.clone() });
            }
            Step::Sync { inode } => {
                let node = known(inode);
                self.changes.push(Change::Sync(node));
            }
            Step::SyncAll => self.changes.push(Change::SyncAll),
            Step::Rename { from, to } => {
                let node = self.at(from);
                assert!(node.is_some(), "{} was renamed and is not there", from.display());
                self.name(vec![(self.slot(from), None), (self.slot(to), node)]);
            }
            Step::Exchange { a, b } => {
                let (at_a, at_b) = (self.at(a), self.at(b));
                assert!(
                    at_a.is_some() && at_b.is_some(),
                    "{} and {} were exchanged",
                    a.display(),
                    b.display()
                );
                self.name(vec![(self.slot(a), at_b), (self.slot(b), at_a)]);
            }
            Step::Remove { path } => self.remove(self.slot(path)),
        }
    }
}

fn apply_names(nodes: &mut [Held], slots: &[(Node, OsString, Option<Node>)]) {
    for (directory, name, to) in slots {
        let Held::Directory(names) = &mut nodes[*directory] else { panic!("a name in a file") };
        match to {
            Some(node) => drop(names.insert(name.clone(), *node)),
            None => drop(names.remove(name)),
        }
    }
}

fn write(contents: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    contents.resize(contents.len().max(offset + bytes.len()), 0);
    contents[offset..offset + bytes.len()].copy_from_slice(bytes);
}

/// The contents of a state: nodes, with the contents of files.
type State = BTreeMap<PathBuf, (Node, Option<Rc<Vec<u8>>>)>;

/// A file that holds numbers of files and directories. These survive a loss of power, but the states built here have others.
const NUMBERED: &str = "publishing";

/// Counts of tried states.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tried {
    /// Moments at which power was lost, and those with too many states, which were drawn.
    pub moments: usize,
    pub drawn: usize,
    /// States that were built, and different ones, each of which was tried.
    pub built: usize,
    pub distinct: usize,
}

/// The number of states to try.
#[derive(Clone, Copy, Debug)]
pub struct Losses {
    pub names: Names,
    /// The most states at one moment. If there are more, this number is drawn.
    pub limit: usize,
    pub seed: u64,
}

impl Trace {
    /// The steps since `before`, which lead to the current directory. A promise is a number of steps
    /// after which a program had reported that something is done.
    ///
    /// # Panics
    /// If the steps lead elsewhere, because something has changed the directory without `Sys`.
    pub fn new(before: Before, steps: &[Step], promises: &[usize]) -> Self {
        let Before { root, nodes, by_inode } = before;
        let mut inodes = vec![0; nodes.len()];
        for (&inode, &node) in &by_inode {
            inodes[node] = inode;
        }
        let mut replay = Replay { root, now: nodes.clone(), inodes, by_inode, changes: Vec::new() };
        // The changes of the first steps.
        let mut reached = vec![0];
        for step in steps {
            replay.take(step);
            reached.push(replay.changes.len());
        }
        let mut nodes = nodes;
        let empty = replay.now[nodes.len()..].iter().map(|node| match node {
            Held::File(_) => Held::File(Rc::default()),
            Held::Directory(_) => Held::Directory(BTreeMap::new()),
        });
        nodes.extend(empty);
        let trace = Self {
            root: replay.root,
            nodes,
            inodes: replay.inodes,
            changes: replay.changes,
            promises: promises.iter().map(|&steps| reached[steps]).collect(),
        };
        let there: BTreeMap<_, _> =
            trace.end().into_iter().map(|(path, file)| (path, file.1.map(|f| f.to_vec()))).collect();
        assert!(there == tree(&trace.root), "something has changed {} past the seam", trace.root.display());
        trace
    }

    /// The state if nothing is lost.
    fn end(&self) -> State {
        let end = self.changes.len();
        let all = self.directories((0..end).map(|_| true));
        Self::visible(&all, |node| Rc::new(self.contents(node, end).pop().unwrap()))
    }

    /// Restores the final directory.
    pub fn build_end(&self) {
        self.build(&self.end());
    }

    /// Changes of names that must survive a loss of power after `end` changes: synced ones, and
    /// those that they follow.
    fn durable(&self, end: usize, names: Names) -> Vec<bool> {
        let mut durable = vec![false; end];
        for i in (0..end).rev() {
            let Change::Names(slots) = &self.changes[i] else { continue };
            durable[i] = self.changes[i..end].iter().enumerate().any(|(after, change)| match change {
                Change::Sync(node) => slots.iter().any(|slot| slot.0 == *node),
                Change::SyncAll => true,
                Change::Names(_) => durable[i + after] && after > 0 && self.follows(i + after, i, names),
                Change::Write { .. } => false,
            });
        }
        durable
    }

    /// The key by which the change `i` of names is ordered.
    fn chains(&self, i: usize, names: Names) -> Vec<(Node, Option<&OsString>)> {
        let Change::Names(slots) = &self.changes[i] else { return Vec::new() };
        slots.iter().map(|slot| (slot.0, (names == Names::Alone).then_some(&slot.1))).collect()
    }

    fn follows(&self, later: usize, earlier: usize, names: Names) -> bool {
        let earlier = self.chains(earlier, names);
        self.chains(later, names).iter().any(|chain| earlier.contains(chain))
    }

    /// Chooses which of the changes that `durable` is about survive: `keep` is asked for each that may be lost and does not
    /// follow one that is.
    fn survivors(&self, names: Names, durable: &[bool], mut keep: impl FnMut() -> bool) -> Vec<bool> {
        let mut lost = HashSet::new();
        let mut kept = Vec::with_capacity(durable.len());
        for (i, &durable) in durable.iter().enumerate() {
            let chains = self.chains(i, names);
            let survives =
                durable || !chains.iter().any(|chain| lost.contains(chain)) && (chains.is_empty() || keep());
            if !survives {
                lost.extend(chains);
            }
            kept.push(survives);
        }
        kept
    }

    /// The directories after those changes of names that are `kept`.
    fn directories(&self, kept: impl Iterator<Item = bool>) -> Vec<Held> {
        let mut nodes = self.nodes.clone();
        for (change, kept) in self.changes.iter().zip(kept) {
            if let Change::Names(slots) = change
                && kept
            {
                apply_names(&mut nodes, slots);
            }
        }
        nodes
    }

    /// The contents from the root on, with files by `contents`.
    fn visible(nodes: &[Held], mut contents: impl FnMut(Node) -> Rc<Vec<u8>>) -> State {
        let mut state = State::new();
        let mut waiting = vec![(0, PathBuf::new())];
        while let Some((directory, at)) = waiting.pop() {
            let Held::Directory(names) = &nodes[directory] else { panic!("a file where a directory was") };
            for (name, &node) in names {
                let path = at.join(name);
                if let Held::File(_) = nodes[node] {
                    state.insert(path, (node, Some(contents(node))));
                } else {
                    state.insert(path.clone(), (node, None));
                    waiting.push((node, path));
                }
            }
        }
        state
    }

    /// The contents of the file `node` at its last sync before `end`, and after each later write.
    fn contents(&self, node: Node, end: usize) -> Vec<Vec<u8>> {
        let Held::File(start) = &self.nodes[node] else { panic!("a directory where a file was") };
        let mut versions = vec![start.to_vec()];
        for change in &self.changes[..end] {
            match change {
                Change::Write { node: to, offset, bytes } if *to == node => {
                    let mut next = versions.last().unwrap().clone();
                    write(&mut next, *offset, bytes);
                    versions.push(next);
                }
                Change::Sync(to) if *to == node => drop(versions.drain(..versions.len() - 1)),
                Change::SyncAll => drop(versions.drain(..versions.len() - 1)),
                _ => {}
            }
        }
        versions
    }

    /// All possible contents of the file `node` if power is lost after `end` changes; the actual contents come first.
    fn possible(&self, node: Node, end: usize, seed: u64) -> Vec<Rc<Vec<u8>>> {
        let versions = self.contents(node, end);
        let (first, last) = (&versions[0], &versions[versions.len() - 1]);
        let length = last.len();
        let mut possible: Vec<Vec<u8>> = versions.iter().rev().cloned().collect();
        possible.extend(versions.iter().map(|version| {
            let mut filled = version.clone();
            filled.resize(filled.len().max(length), 0);
            filled
        }));
        if versions.len() > 1 {
            let pages: Vec<usize> = (0..length.div_ceil(PAGE)).collect();
            // Each bit: whether that page was written.
            let masks: Vec<u64> = match pages.len() {
                0..=3 => (0..1 << pages.len()).collect(),
                _ => (0..4).map(|k| Counter::new(seed, node as u64).bits(k)).chain([1, !1]).collect(),
            };
            possible.extend(masks.iter().map(|mask| {
                let mut torn = first.clone();
                torn.resize(length, 0);
                for page in pages.iter().filter(|&&page| mask >> (page % 64) & 1 == 1) {
                    let bytes = page * PAGE..(page * PAGE + PAGE).min(length);
                    torn[bytes.clone()].copy_from_slice(&last[bytes]);
                }
                torn
            }));
            let cuts = pages.iter().map(|page| page * PAGE).filter(|&cut| cut >= first.len());
            possible.extend(cuts.take(4).map(|cut| last[..cut].to_vec()));
        }
        let mut seen = HashSet::new();
        possible.retain(|contents| seen.insert(xxh3_64(contents)));
        possible.into_iter().map(Rc::new).collect()
    }

    /// Builds every state that a loss of power may leave, in place of the directory, and calls `check` with it and with the
    /// number of promises that were given.
    pub fn lose_power(&self, losses: Losses, mut check: impl FnMut(usize)) -> Tried {
        let syncs =
            |i: &usize| matches!(self.changes.get(*i), Some(Change::Sync(_) | Change::SyncAll) | None);
        let (mut tried, mut seen) = (Tried::default(), HashSet::new());
        for end in (0..=self.changes.len()).filter(syncs) {
            let promised = self.promises.iter().filter(|&&p| p <= end).count();
            let (states, all) = self.states(end, losses);
            tried.moments += 1;
            tried.drawn += usize::from(!all);
            tried.built += states.len();
            for state in states {
                let mut hasher = DefaultHasher::new();
                (promised, &state).hash(&mut hasher);
                if !seen.insert(hasher.finish()) {
                    continue;
                }
                tried.distinct += 1;
                self.build(&state);
                let _shown = Shown { state: &state, end, promised };
                check(promised);
            }
        }
        tried
    }

    /// The states after `end` changes, and whether these are all states.
    fn states(&self, end: usize, losses: Losses) -> (Vec<State>, bool) {
        let durable = self.durable(end, losses.names);
        let mut possible: HashMap<Node, Vec<Rc<Vec<u8>>>> = HashMap::new();
        let mut choose = |kept: Vec<bool>, pick: &mut dyn FnMut(usize) -> usize| {
            Self::visible(&self.directories(kept.into_iter()), |node| {
                let possible = possible.entry(node).or_insert_with(|| self.possible(node, end, losses.seed));
                Rc::clone(&possible[pick(possible.len())])
            })
        };
        let mut states = Vec::new();
        let mut odometer = Odometer::default();
        while states.len() < losses.limit {
            odometer.turn = 0;
            let cell = RefCell::new(&mut odometer);
            let kept = self.survivors(losses.names, &durable, || cell.borrow_mut().pick(2) == 0);
            states.push(choose(kept, &mut |n| cell.borrow_mut().pick(n)));
            if !odometer.advance() {
                return (states, true);
            }
        }
        // Too many: the share of losses is drawn too, so that states with few and with many losses are among them.
        states.clear();
        for k in 0..losses.limit as u64 {
            let random = Counter::new(losses.seed, (end as u64) << 32 | k);
            let (share, next) = (random.unit(0).powi(2), Cell::new(1));
            let lost = || random.unit(next.replace(next.get() + 1)) < share;
            let kept = self.survivors(losses.names, &durable, || !lost());
            states.push(choose(kept, &mut |n| {
                let other = random.bits(next.replace(next.get() + 1)) % n as u64;
                if lost() { usize::try_from(other).unwrap() } else { 0 }
            }));
        }
        (states, false)
    }

    fn build(&self, state: &State) {
        for entry in self.root.read_dir().unwrap().map(|e| e.unwrap().path()) {
            if entry.is_dir() { std::fs::remove_dir_all(&entry) } else { std::fs::remove_file(&entry) }
                .unwrap();
        }
        let mut now = HashMap::new();
        // Directories come before their entries.
        for (path, (node, contents)) in state {
            let path = self.root.join(path);
            match contents {
                Some(contents) => std::fs::write(&path, &contents[..]).unwrap(),
                None => std::fs::create_dir(&path).unwrap(),
            }
            now.insert(self.inodes[*node], path.metadata().unwrap().ino());
        }
        for (path, (_, contents)) in state {
            let numbered = contents.as_ref().filter(|_| path.ends_with(NUMBERED));
            if let Some(text) = numbered.and_then(|bytes| renumbered(bytes, &now)) {
                std::fs::write(self.root.join(path), text).unwrap();
            }
        }
    }
}

/// The text with the current numbers of files and directories; `None` if it is torn.
fn renumbered(text: &[u8], now: &HashMap<u64, u64>) -> Option<Vec<u8>> {
    let mut text: serde_json::Value = serde_json::from_slice(text).ok()?;
    for inode in text["inodes"].as_array_mut()? {
        *inode = now.get(&inode.as_u64()?).copied().unwrap_or(u64::MAX).into();
    }
    serde_json::to_vec(&text).ok()
}

/// Enumerates all sequences of choices. A choice may depend on those before.
#[derive(Default)]
struct Odometer {
    /// Each choice, and the number of its alternatives.
    digits: Vec<(usize, usize)>,
    turn: usize,
}

impl Odometer {
    fn pick(&mut self, of: usize) -> usize {
        if self.turn == self.digits.len() {
            self.digits.push((0, of));
        }
        let (chosen, n) = self.digits[self.turn];
        assert_eq!(n, of, "choices depend on those before alone");
        self.turn += 1;
        chosen
    }

    /// Goes to the next sequence; false after the last.
    fn advance(&mut self) -> bool {
        while let Some((chosen, of)) = self.digits.pop() {
            if chosen + 1 < of {
                self.digits.push((chosen + 1, of));
                return true;
            }
        }
        false
    }
}

/// Prints the state in which a check has failed.
struct Shown<'a> {
    state: &'a State,
    end: usize,
    promised: usize,
}

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("power was lost after {} changes, {} promises; there was:", self.end, self.promised);
            for (path, (_, contents)) in self.state {
                let bytes = contents.as_ref().map_or(String::new(), |c| format!(", {} bytes", c.len()));
                println!("  {}{bytes}", path.display());
            }
        }
    }
}
