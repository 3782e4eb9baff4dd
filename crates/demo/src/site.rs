//! The files that the demo's servers hand out.
//!
//! Both nodes serve the same folder, so contents and modification times agree, as a mirrored
//! document root would. One large file of random bytes, which no proxy, compressor or lucky
//! retransmission could make up, and small ones for idle keep-alive connections.
//!
//! The files look old. Apache marks the entity tag of a file as weak while the file is younger
//! than a second, so that a reply made again a second later is two bytes shorter than the first
//! one: not the same reply to the same request, which is what the scheme `track` asks for.

use std::fs::{self, File};
use std::io::{BufWriter, Read, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context, bail};
use sha2::{Digest, Sha256};

/// Bytes of each small file.
pub const SMALL_BYTES: usize = 4096;
/// How many small files there are.
pub const SMALL_FILES: usize = 2;
/// When all files were modified last, seconds since 1970.
const MODIFIED: u64 = 1_700_000_000;

/// A document root.
#[derive(Debug)]
pub struct Site {
    root: PathBuf,
    /// Bytes of the large file.
    pub size: u64,
    /// Its SHA-256.
    pub sha256: [u8; 32],
    /// The small files' contents.
    pub small: Vec<Vec<u8>>,
}

impl Site {
    /// Path of the large file, as a client asks for it.
    pub const LARGE: &'static str = "/large.bin";

    /// Path of a small file.
    pub fn small_path(number: usize) -> String {
        format!("/small-{number}.bin")
    }

    /// Makes the folder `root` and fills it; the large file has `size` bytes.
    ///
    /// # Errors
    /// The folder's file system has no room, or refuses.
    pub fn create(root: &Path, size: u64) -> anyhow::Result<Site> {
        check_room(root.parent().unwrap_or(root), size)?;
        // Servers read it as a user without privileges.
        fs::DirBuilder::new()
            .mode(0o755)
            .create(root)
            .with_context(|| format!("cannot create {}", root.display()))?;
        let mut random = File::open("/dev/urandom").context("cannot open /dev/urandom")?;
        let path = root.join(&Self::LARGE[1..]);
        let doing = || format!("cannot write {}", path.display());
        let mut large = BufWriter::new(File::create(&path).with_context(doing)?);
        let (mut hash, mut left, mut block) = (Sha256::new(), size, vec![0; 1 << 20]);
        while left > 0 {
            let now = block.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            random.read_exact(&mut block[..now]).context("cannot read /dev/urandom")?;
            hash.update(&block[..now]);
            large.write_all(&block[..now]).with_context(doing)?;
            left -= now as u64;
        }
        large.flush().and_then(|()| age(large.get_ref())).with_context(doing)?;
        let mut small = Vec::new();
        for number in 0..SMALL_FILES {
            let mut body = vec![0; SMALL_BYTES];
            random.read_exact(&mut body).context("cannot read /dev/urandom")?;
            let path = root.join(&Self::small_path(number)[1..]);
            File::create(&path)
                .and_then(|mut file| file.write_all(&body).and_then(|()| age(&file)))
                .with_context(|| format!("cannot write {}", path.display()))?;
            small.push(body);
        }
        Ok(Site { root: root.to_owned(), size, sha256: hash.finalize().into(), small })
    }

    /// The folder.
    pub fn root(&self) -> &Path {
        &self.root
    }
}

fn age(file: &File) -> std::io::Result<()> {
    file.set_modified(UNIX_EPOCH + Duration::from_secs(MODIFIED))
}

/// Says so before half a file fills the file system.
fn check_room(dir: &Path, size: u64) -> anyhow::Result<()> {
    let stat = nix::sys::statvfs::statvfs(dir)
        .with_context(|| format!("cannot ask how much room {} has", dir.display()))?;
    #[allow(clippy::unnecessary_cast)] // these types differ between architectures
    let free = stat.blocks_available() as u64 * stat.fragment_size() as u64;
    if free < size.saturating_add(16 << 20) {
        bail!(
            "{} has room for {} MB only, and the file to download is of {} MB: choose a smaller \
             --size, or name a folder with more room in STEADFAST_LAB_DIR",
            dir.display(),
            free / 1_000_000,
            size / 1_000_000
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_that_of_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let site = Site::create(&dir.path().join("site"), (1 << 20) + 17).unwrap();
        let bytes = fs::read(dir.path().join("site/large.bin")).unwrap();
        assert_eq!(bytes.len() as u64, site.size);
        assert_eq!(<[u8; 32]>::from(Sha256::digest(&bytes)), site.sha256);
        let small = dir.path().join("site/small-1.bin");
        assert_eq!(fs::read(&small).unwrap(), site.small[1]);
        // A file younger than a second has replies of its own at Apache.
        assert!(small.metadata().unwrap().modified().unwrap().elapsed().unwrap().as_secs() > 60);
    }

    #[test]
    fn too_little_room_is_said_beforehand() {
        let dir = tempfile::tempdir().unwrap();
        let error = Site::create(&dir.path().join("site"), u64::MAX / 2).unwrap_err().to_string();
        assert!(error.contains("STEADFAST_LAB_DIR"), "{error}");
        assert!(!dir.path().join("site").exists());
    }
}
