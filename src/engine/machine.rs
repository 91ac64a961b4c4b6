//! The machine's processors, memory and directories.

use rustix::process::{Resource, getrlimit};
use std::path::{Path, PathBuf};

/// Processors that this process may use.
pub fn processors() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Bytes of memory that are available now: in this machine, in the control groups of this process (containers, batch jobs), and within the
/// process's own limits (`ulimit -v` and `-d`); a large number if the system does not say.
pub fn available_memory() -> u64 {
    let text = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let machine = kib(&text("/proc/meminfo"), "MemAvailable:").unwrap_or(u64::MAX / 2);
    let groups = groups_memory(Path::new("/sys/fs/cgroup"), &text("/proc/self/cgroup"));
    let limits = limits_memory(&text("/proc/self/status"), |limit| getrlimit(limit).current);
    [groups, limits].into_iter().flatten().fold(machine, u64::min)
}

/// The bytes in the line that begins with `name`, of a file in `/proc`.
fn kib(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name));
    line?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

/// Bytes that the limits of this process leave, less the address space that its threads may reserve. `status` is the text of
/// `/proc/self/status`.
fn limits_memory(status: &str, limit: impl Fn(Resource) -> Option<u64>) -> Option<u64> {
    let left = |resource, taken: &str| {
        let taken = kib(status, taken).unwrap_or(0);
        Some(limit(resource)?.saturating_sub(taken))
    };
    let left = left(Resource::As, "VmSize:").into_iter().chain(left(Resource::Data, "VmData:")).min()?;
    Some(left - left / 4)
}

/// The names of a control group's files, and of lines in its `memory.stat`.
struct GroupNames {
    limit: &'static str,
    used: &'static str,
    /// File pages, which the system takes back when memory is short.
    cached: [&'static str; 2],
}

/// Control groups, version 1.
const V1: GroupNames = GroupNames {
    limit: "memory.limit_in_bytes",
    used: "memory.usage_in_bytes",
    cached: ["total_inactive_file", "total_active_file"],
};
/// Control groups, version 2.
const V2: GroupNames =
    GroupNames { limit: "memory.max", used: "memory.current", cached: ["inactive_file", "active_file"] };

/// Bytes that control groups leave: the least of all groups above this process. `groups` is the text of `/proc/self/cgroup`, with a line per hierarchy
/// (number:controllers:path). The hierarchies are below `root`.
fn groups_memory(root: &Path, groups: &str) -> Option<u64> {
    let least = |line: &str| {
        let (controllers, path) = line.split_once(':')?.1.split_once(':')?;
        let (root, names) = match controllers {
            "" => (root.to_path_buf(), &V2),
            _ if controllers.split(',').any(|name| name == "memory") => (root.join("memory"), &V1),
            _ => return None,
        };
        let within = Path::new(path.trim_start_matches('/'));
        within.ancestors().filter_map(|group| group_memory(&root.join(group), names)).min()
    };
    groups.lines().filter_map(least).min()
}

/// Bytes that the control group `dir` leaves, if it has a limit.
fn group_memory(dir: &Path, names: &GroupNames) -> Option<u64> {
    let read = |name: &str| std::fs::read_to_string(dir.join(name)).ok();
    let number = |text: &str| text.trim().parse::<u64>().ok();
    let limit = number(&read(names.limit)?)?;
    let used = number(&read(names.used)?)?;
    let statistics = read("memory.stat").unwrap_or_default();
    let fields = statistics.lines().filter_map(|line| line.split_once(' '));
    let cached: u64 =
        fields.filter(|(name, _)| names.cached.contains(name)).filter_map(|(_, bytes)| number(bytes)).sum();
    Some(limit.saturating_sub(used.saturating_sub(cached)))
}

/// The directory where this user's programs keep what they can make again: `$XDG_CACHE_HOME/blco` or `~/.cache/blco`.
pub fn cache_directory() -> Option<PathBuf> {
    let absolute = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = absolute("XDG_CACHE_HOME").or_else(|| absolute("HOME").map(|home| home.join(".cache")))?;
    Some(base.join("blco"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_of_the_process_decide_where_they_are_tighter() {
        let status = "Name:\tblco\nVmSize:\t  2048 kB\nVmData:\t 1024 kB\n";
        let left = |address: Option<u64>, data: Option<u64>| {
            limits_memory(status, |limit| if limit == Resource::As { address } else { data })
        };
        assert_eq!(left(None, None), None);
        assert_eq!(left(Some(6 << 20), None), Some(3 << 20));
        assert_eq!(left(Some(6 << 20), Some(3 << 20)), Some(3 << 19));
        assert_eq!(left(Some(1 << 20), None), Some(0));
    }

    #[test]
    fn the_tightest_control_group_decides() {
        let dir = tempfile::tempdir().unwrap();
        let group = |path: &str, files: &[(&str, &str)]| {
            std::fs::create_dir_all(dir.path().join(path)).unwrap();
            for (name, text) in files {
                std::fs::write(dir.path().join(path).join(name), text).unwrap();
            }
        };
        let left = |groups: &str| groups_memory(dir.path(), groups);
        assert_eq!(left("0::/job/step\n"), None);
        let stat = "anon 5\ninactive_file 30\nactive_file 20\nunevictable 7\n";
        group("job", &[("memory.max", "1000\n"), ("memory.current", "150\n"), ("memory.stat", stat)]);
        group("job/step", &[("memory.max", "max\n"), ("memory.current", "100\n")]);
        assert_eq!(left("0::/job/step\n"), Some(900));
        group("job/step", &[("memory.max", "400\n")]);
        assert_eq!(left("0::/job/step\n"), Some(300));
        assert_eq!(left("0::/\n"), None);
        let stat = "inactive_file 1\ntotal_inactive_file 10\ntotal_active_file 10\n";
        let files =
            [("memory.limit_in_bytes", "90"), ("memory.usage_in_bytes", "100"), ("memory.stat", stat)];
        group("memory/slurm", &files);
        assert_eq!(left("4:cpu,memory:/slurm/not-seen\n3:cpuset:/job\n0::/job\n"), Some(10));
    }
}
