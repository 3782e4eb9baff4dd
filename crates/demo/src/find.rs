//! Where the programs are that the demo runs.
//!
//! Servers live in `sbin`, which is not in everybody's `PATH`; some are not installed at all but
//! unpacked below `target/servers`, because their packages would start a system service; and the
//! first `python3` in `PATH` is often a version manager's script. So the system's own folders
//! come first, then `PATH`, then what was unpacked.

use std::env;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// A program that is nowhere.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot find {program}: install the package {package} (make demo and make test bring it \
     along), or name the folder it was unpacked to in STEADFAST_SERVERS"
)]
pub struct Missing {
    program: String,
    package: String,
}

/// Finds `program`, which the Debian package `package` contains.
///
/// # Errors
/// [`Missing`], naming the package.
pub fn program(program: &str, package: &str) -> Result<PathBuf, Missing> {
    folders()
        .into_iter()
        .map(|folder| folder.join(program))
        .find(|path| is_executable(path))
        .ok_or_else(|| Missing { program: program.to_owned(), package: package.to_owned() })
}

fn folders() -> Vec<PathBuf> {
    let mut folders: Vec<PathBuf> =
        ["/usr/sbin", "/usr/bin", "/sbin", "/bin"].map(PathBuf::from).into();
    if let Some(path) = env::var_os("PATH") {
        folders.extend(env::split_paths(&path));
    }
    if let Some(root) = env::var_os("STEADFAST_SERVERS") {
        folders.extend(inside(Path::new(&root)));
    }
    // target/servers of the workspace that this program was built in, or that we stand in.
    let exe = env::current_exe().ok();
    let here = env::current_dir().ok();
    for start in [exe, here].into_iter().flatten() {
        folders.extend(start.ancestors().flat_map(|dir| inside(&dir.join("target/servers"))));
    }
    folders
}

fn inside(root: &Path) -> [PathBuf; 3] {
    [root.join("usr/sbin"), root.join("usr/bin"), root.to_owned()]
}

fn is_executable(path: &Path) -> bool {
    path.metadata().is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_found_and_missing_ones_name_their_package() {
        assert!(program("sh", "dash").unwrap().is_absolute());
        let error = program("no-such-server", "no-such-package").unwrap_err().to_string();
        assert!(error.contains("no-such-server") && error.contains("package no-such-package"));
    }

    #[test]
    fn a_file_that_cannot_be_run_is_not_a_program() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tool");
        std::fs::write(&path, "").unwrap();
        assert!(!is_executable(&path) && !is_executable(dir.path()));
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        assert!(is_executable(&path));
    }
}
