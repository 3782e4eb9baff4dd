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

const NAME: &str = "epoch";

/// Zero if there is none.
pub fn read(state_dir: &Path) -> anyhow::Result<Epoch> {
    let path = state_dir.join(NAME);
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
    pub fn new(state_dir: &Path) -> Self {
        Self { path: state_dir.join(NAME), written: Epoch(0) }
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

    #[test]
    fn the_next_life_knows_the_highest_epoch() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(read(dir.path()).unwrap(), Epoch(0));
        let mut file = EpochFile::new(dir.path());
        file.write(Epoch(7));
        file.write(Epoch(3));
        assert_eq!(read(dir.path()).unwrap(), Epoch(7));
    }

    #[test]
    fn a_damaged_file_is_named() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(NAME), "seven").unwrap();
        assert!(read(dir.path()).unwrap_err().to_string().contains("remove it"));
    }
}
