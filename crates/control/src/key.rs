//! The key that both nodes share, and the file it lives in: 64 hexadecimal digits.
//!
//! Whoever can read the file can join the cluster, so a file that others may read is refused
//! rather than warned about, and a new file is private from its first moment.

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::Rng;

const KEY_BYTES: usize = 32;
/// Room for the digits, a newline and an editor's habits.
const FILE_MAX: u64 = 256;

/// A pre-shared key. Its bytes appear in no message and no debug output.
#[derive(Clone, PartialEq, Eq)]
pub struct Psk([u8; KEY_BYTES]);

/// Why there is no key.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    #[error("cannot read the key file {}; make one with `steadfast keygen` and copy it to \
             both nodes", .path.display())]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("the key file {} may be used by others (mode {mode:03o}); run chmod 600 on it, and \
             make a new key if it may have been read", .path.display())]
    Exposed { path: PathBuf, mode: u32 },
    #[error("the key file {} {why}; it must hold 64 hexadecimal digits, as `steadfast keygen` \
             writes them", .path.display())]
    Malformed { path: PathBuf, why: String },
    #[error("cannot write a key to {}; an existing file is never overwritten", .path.display())]
    Unwritable { path: PathBuf, source: io::Error },
}

impl Psk {
    /// A key of these bytes.
    pub fn from_bytes(bytes: [u8; KEY_BYTES]) -> Psk {
        Psk(bytes)
    }

    /// Reads the key file at `path`: a regular file that nobody but its owner may use.
    pub fn load(path: &Path) -> Result<Psk, KeyError> {
        let unreadable = |source| KeyError::Unreadable { path: path.to_owned(), source };
        let malformed = |why: String| KeyError::Malformed { path: path.to_owned(), why };
        // O_NONBLOCK: opening a FIFO must not wait for a writer.
        let file = OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(path);
        let file = file.map_err(unreadable)?;
        let metadata = file.metadata().map_err(unreadable)?;
        if !metadata.is_file() {
            return Err(malformed("is not a regular file".to_owned()));
        }
        let mode = metadata.mode() & 0o777;
        if mode & 0o077 != 0 {
            return Err(KeyError::Exposed { path: path.to_owned(), mode });
        }
        let mut text = Vec::new();
        file.take(FILE_MAX + 1).read_to_end(&mut text).map_err(unreadable)?;
        Psk::parse(&text).map_err(malformed)
    }

    /// Makes a new key and writes it to a new file of mode 0600.
    pub fn generate(path: &Path, rng: &Rng) -> Result<Psk, KeyError> {
        let unwritable = |source| KeyError::Unwritable { path: path.to_owned(), source };
        let mut bytes = [0; KEY_BYTES];
        rng.fill(&mut bytes);
        let psk = Psk(bytes);
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let mut file = file.map_err(unwritable)?;
        if let Err(error) = psk.write_to(&mut file) {
            // Half a key would only be refused later; the file is ours, so nothing is lost.
            let _ = std::fs::remove_file(path);
            return Err(unwritable(error));
        }
        Ok(psk)
    }

    fn write_to(&self, file: &mut File) -> io::Result<()> {
        let digits: String = self.0.iter().map(|byte| format!("{byte:02x}")).collect();
        writeln!(file, "{digits}")?;
        file.sync_all()
    }

    /// Reads 64 digits and surrounding white space. The error completes "the key file …".
    fn parse(text: &[u8]) -> Result<Psk, String> {
        let digits = text.trim_ascii();
        if text.len() as u64 > FILE_MAX {
            return Err("is too long".to_owned());
        }
        if digits.len() != 2 * KEY_BYTES {
            return Err(format!("holds {} characters", digits.len()));
        }
        let mut bytes = [0; KEY_BYTES];
        for (byte, pair) in bytes.iter_mut().zip(digits.chunks_exact(2)) {
            let digit = |c: u8| char::from(c).to_digit(16);
            let (Some(high), Some(low)) = (digit(pair[0]), digit(pair[1])) else {
                return Err("holds something else than hexadecimal digits".to_owned());
            };
            *byte = (high << 4 | low) as u8;
        }
        if bytes == [0; KEY_BYTES] {
            return Err("holds only zeros, which is no secret".to_owned());
        }
        Ok(Psk(bytes))
    }

    pub(crate) fn bytes(&self) -> &[u8; KEY_BYTES] {
        &self.0
    }
}

/// fcntl.h, the same on every architecture that Linux's BPF JIT serves.
const O_NONBLOCK: i32 = 0o4000;

impl fmt::Debug for Psk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Psk(secret)")
    }
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    /// Writes a file with the given contents and mode and says what loading it says.
    fn load(contents: &[u8], mode: u32) -> Result<Psk, KeyError> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        fs::write(&path, contents).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        Psk::load(&path)
    }

    #[test]
    fn a_generated_key_is_private_and_reads_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("key");
        let psk = Psk::generate(&path, &Rng::system()).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
        assert_eq!(Psk::load(&path).unwrap(), psk);
        let before = fs::read(&path).unwrap();
        let again = Psk::generate(&path, &Rng::system()).unwrap_err();
        assert!(matches!(again, KeyError::Unwritable { .. }), "{again}");
        assert_eq!(fs::read(&path).unwrap(), before);
        assert!(!format!("{psk:?}").contains(str::from_utf8(&before[..8]).unwrap()));
    }

    #[test]
    fn a_key_that_others_may_use_is_refused() {
        let digits = "0123456789abcdefABCDEF0123456789".repeat(2);
        assert!(load(digits.as_bytes(), 0o600).is_ok());
        assert!(load(format!(" {digits}\n").as_bytes(), 0o400).is_ok());
        for mode in [0o640, 0o604, 0o620, 0o601] {
            let error = load(digits.as_bytes(), mode).unwrap_err();
            assert!(error.to_string().contains("chmod 600"), "{error}");
        }
    }

    #[test]
    fn a_malformed_or_missing_key_is_refused_with_the_reason() {
        let long = "a".repeat(300);
        for (contents, says) in [
            ("", "0 characters"),
            ("abcd", "4 characters"),
            (&"g".repeat(64), "hexadecimal"),
            (&"0".repeat(64), "zeros"),
            (&"é".repeat(32), "hexadecimal"),
            (&long, "too long"),
        ] {
            let error = load(contents.as_bytes(), 0o600).unwrap_err().to_string();
            assert!(error.contains(says), "{error:?} does not say {says:?}");
        }
        let error = Psk::load(Path::new("/nonexistent/key")).unwrap_err();
        assert!(error.to_string().contains("keygen"), "{error}");
        let error = Psk::load(Path::new("/dev/null")).unwrap_err();
        assert!(error.to_string().contains("regular file"), "{error}");
    }
}
