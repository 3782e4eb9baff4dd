//! The highest epoch this node has taken part in, for its next life. Without it a daemon that is
//! restarted while its peer hangs would count from the beginning, and the peer, on waking, would
//! take its own old epoch for the newer one.
//!
//! The file lies in the state directory, which a reboot may empty: with the host's memory went all
//! that the epoch could protect.

use std::io;
use std::path::{Path, PathBuf};

use anyhow::Context;
use cluster::Epoch;

use super::scope::Scope;

/// The file for one scope.
fn path(state_dir: &Path, scope: Scope) -> PathBuf {
    state_dir.join(scope.number().map_or("epoch".to_owned(), |number| format!("epoch-{number}")))
}

/// Zero if there is none.
pub fn read(state_dir: &Path, scope: Scope) -> anyhow::Result<Epoch> {
    let path = path(state_dir, scope);
    let text = match std::fs::read_to_string(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Epoch(0)),
        Err(error) => return Err(error).context(format!("cannot read {}", path.display())),
    };
    let epoch = text.trim().parse().with_context(|| {
        format!("{} does not hold a number; remove it while the peer runs", path.display())
    })?;
    Ok(Epoch(epoch))
}

/// Writes the file where it changes, whole or not at all.
pub struct EpochFile {
    path: PathBuf,
    written: Epoch,
}

impl EpochFile {
    pub fn new(state_dir: &Path, scope: Scope) -> Self {
        Self { path: path(state_dir, scope), written: Epoch(0) }
    }

    pub fn write(&mut self, epoch: Epoch) {
        if epoch <= self.written {
            return;
        }
        self.written = epoch;
        let new = self.path.with_extension("new");
        let result = std::fs::write(&new, format!("{}\n", epoch.0))
            .and_then(|()| std::fs::rename(&new, &self.path));
        if let Err(error) = result {
            tracing::warn!(path = %self.path.display(), %error, "cannot remember the epoch");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Roles;

    #[test]
    fn the_next_life_knows_the_highest_epoch() {
        for roles in [Roles::Single, Roles::Dual] {
            let dir = tempfile::tempdir().unwrap();
            for (scope, highest) in Scope::all(roles).into_iter().zip([7, 8]) {
                assert_eq!(read(dir.path(), scope).unwrap(), Epoch(0));
                let mut file = EpochFile::new(dir.path(), scope);
                file.write(Epoch(highest));
                file.write(Epoch(3));
                assert_eq!(read(dir.path(), scope).unwrap(), Epoch(highest));
            }
        }
    }

    #[test]
    fn a_damaged_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let [all] = Scope::all(Roles::Single)[..] else { panic!("one node serves everybody") };
        std::fs::write(path(dir.path(), all), "seven").unwrap();
        assert!(read(dir.path(), all).unwrap_err().to_string().contains("remove it"));
    }
}
