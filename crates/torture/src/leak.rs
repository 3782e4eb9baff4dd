//! What a lab may leave behind on the machine, and must not.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use demo::clock::Bell;

/// How long the kernel may take to let go of what was closed.
const PATIENCE: Duration = Duration::from_secs(5);

/// A folder that is to go, and not another one that gets its name.
#[derive(Clone, Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    inode: Option<u64>,
}

impl Folder {
    pub(crate) fn new(path: &Path) -> Folder {
        Folder { path: path.to_owned(), inode: inode(path) }
    }

    fn is_there(&self) -> bool {
        self.inode.is_some() && inode(&self.path) == self.inode
    }
}

fn inode(path: &Path) -> Option<u64> {
    fs::metadata(path).ok().map(|data| data.ino())
}

/// What this process holds.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    files: usize,
    threads: usize,
    children: Vec<String>,
}

impl Held {
    /// Now.
    pub(crate) fn now() -> Held {
        Held {
            files: count("/proc/self/fd"),
            threads: count("/proc/self/task"),
            children: children(),
        }
    }

    /// What there is more than before, now that the lab in `dir` is gone.
    pub(crate) fn leaked(self, dir: &Folder) -> Vec<String> {
        let clean = || {
            let now = Held::now();
            !dir.is_there()
                && now.files <= self.files
                && now.threads <= self.threads
                && self.more_children(&now).is_empty()
        };
        if Bell::default().wait_until(PATIENCE, clean) {
            return Vec::new();
        }
        let now = Held::now();
        let mut leaked = Vec::new();
        if dir.is_there() {
            leaked.push(format!("{} is still there", dir.path.display()));
        }
        if now.files > self.files {
            leaked.push(format!("{} files more are open", now.files - self.files));
        }
        if now.threads > self.threads {
            let more = now.threads - self.threads;
            leaked.push(format!("{more} threads more run; there are {}", threads().join(", ")));
        }
        let more = self.more_children(&now);
        leaked.extend(more.iter().map(|pid| format!("process {pid} is still there")));
        leaked
    }

    fn more_children(&self, now: &Held) -> Vec<String> {
        now.children.iter().filter(|pid| !self.children.contains(pid)).cloned().collect()
    }
}

fn count(dir: &str) -> usize {
    fs::read_dir(dir).map_or(0, Iterator::count)
}

/// Names of this process's threads.
fn threads() -> Vec<String> {
    let tasks = fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let name = |task: fs::DirEntry| fs::read_to_string(task.path().join("comm"));
    tasks.filter_map(|task| name(task).ok()).map(|name| name.trim().to_owned()).collect()
}

/// Processes that this one has started and that are there.
fn children() -> Vec<String> {
    let mut all = Vec::new();
    for thread in fs::read_dir("/proc/self/task").into_iter().flatten().flatten() {
        let text = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        all.extend(text.split_whitespace().map(str::to_owned));
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_open_file_and_a_folder_are_leaks() {
        let held = Held { threads: usize::MAX, ..Held::now() };
        let _open = fs::File::open("/proc/self/status").unwrap();
        let leaked = held.leaked(&Folder::new(Path::new("/proc/self")));
        assert!(leaked.iter().any(|l| l.contains("/proc/self is still there")), "{leaked:?}");
        assert!(leaked.iter().any(|l| l.contains("files more")), "{leaked:?}");
    }
}
