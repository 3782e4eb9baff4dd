//! What keeps the socket programs attached when the daemon is killed.
//!
//! Their attachments are BPF links, which end with their last reference. A file in bpffs is such a
//! reference, so each link gets one, in a directory of this network namespace's own. The name says
//! which namespace by its cookie, which no other has had since the host was booted: daemons in
//! other namespaces of the same machine see the same bpffs, and must not find each other's.
//!
//! A successor finds the files and puts its own programs into the links that are there: there is no
//! instant without a program, and none with two. An orderly stop removes the directory.

use std::io;
use std::path::{Path, PathBuf};

use libbpf_rs::{Link, ProgramMut};
use nix::mount::{MsFlags, mount};
use nix::sys::statfs::{FsType, statfs};

use crate::Error;

/// Where every host of our time has its bpffs.
const BPFFS: &str = "/sys/fs/bpf";

/// This namespace's directory in bpffs.
#[derive(Debug)]
pub(crate) struct Pins {
    directory: PathBuf,
    kept: Vec<&'static str>,
}

impl Pins {
    /// Makes the directory unless a predecessor has left it. Mounts bpffs where it is missing, as
    /// `bpftool` does.
    pub(crate) fn open(netns_cookie: u64) -> Result<Self, Error> {
        let directory = Path::new(BPFFS).join(format!("steadfast-{netns_cookie:x}"));
        let unusable = |source| Error::Pin { path: directory.clone(), source };
        if !is_bpffs(Path::new(BPFFS)).map_err(unusable)? {
            mount_bpffs().map_err(unusable)?;
        }
        match std::fs::create_dir(&directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(unusable(error)),
            _ => Ok(Self { directory, kept: Vec::new() }),
        }
    }

    /// Gives `program` the link of that name, or makes the link with `attach`.
    pub(crate) fn keep(
        &mut self,
        name: &'static str,
        program: &ProgramMut<'_>,
        attach: impl FnOnce(&ProgramMut<'_>) -> libbpf_rs::Result<Link>,
    ) -> Result<Link, Error> {
        self.kept.push(name);
        let path = self.directory.join(name);
        let failed =
            |place: &str, source| Error::Attach { program: name, place: place.into(), source };
        if let Ok(mut link) = Link::open(&path) {
            match link.update_prog(program) {
                Ok(()) => return Ok(link),
                // A release that attached something else here: its link goes below.
                Err(error) => tracing::warn!("{name}: a predecessor's link is of no use: {error}"),
            }
        }
        let mut link = attach(program).map_err(|source| failed("the root cgroup", source))?;
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(Error::Pin { path, source: error });
            }
            _ => {}
        }
        link.pin(&path).map_err(|source| failed(&path.display().to_string(), source))?;
        Ok(link)
    }

    /// Removes what a predecessor of another release kept and this one does not.
    pub(crate) fn remove_others(&self) -> Result<(), Error> {
        self.remove_but(&self.kept).map_err(|source| self.unusable(source))
    }

    /// Removes every file and the directory. The links end with the descriptors that are left.
    pub(crate) fn remove(self) -> Result<(), Error> {
        let removed = self.remove_but(&[]).and_then(|()| std::fs::remove_dir(&self.directory));
        removed.map_err(|source| self.unusable(source))
    }

    fn remove_but(&self, kept: &[&str]) -> io::Result<()> {
        for entry in std::fs::read_dir(&self.directory)? {
            let entry = entry?;
            if !kept.iter().any(|name| entry.file_name() == *name) {
                std::fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }

    fn unusable(&self, source: io::Error) -> Error {
        Error::Pin { path: self.directory.clone(), source }
    }
}

fn is_bpffs(path: &Path) -> io::Result<bool> {
    Ok(statfs(path)?.filesystem_type() == FsType(libc::BPF_FS_MAGIC))
}

fn mount_bpffs() -> io::Result<()> {
    let private = MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC;
    Ok(mount(Some("bpf"), BPFFS, Some("bpf"), private, Some("mode=0700"))?)
}
