//! Servers that know nothing of Steadfast: how each is set up in a folder of its own, how its clients talk
//! with it, and how it is ended. Tests that run them under the runtime have them from [`each`].

mod ftp;
mod irc;
mod redis;
mod smb;
mod ssh;
mod web;

use std::fs;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;

use demo::find;
use demo::site::Site;
use nix::sys::signal::Signal;
use tempfile::TempDir;

pub use ftp::{vsftpd, vsftpd_isolated};
pub use irc::ngircd;
pub use redis::redis;
pub use smb::smbd;
pub use ssh::sshd;
pub use web::{apache, apache_prefork, busybox, caddy, nginx, nginx_tls, python};

/// Hands the names of all servers to a macro.
macro_rules! each {
    ($macro:ident) => {
        $macro! {
            nginx nginx_tls apache apache_prefork python busybox caddy redis vsftpd vsftpd_isolated smbd sshd
            ngircd
        }
    };
}
pub(crate) use each;

/// A server that is set up.
pub struct Server {
    /// The words that start it.
    pub command: Vec<String>,
    /// Whether it has begun: it answers a client.
    pub answers: Box<dyn Fn() -> bool>,
    /// Clients come, several at once, and find that they get what they should.
    pub serves: Box<dyn Fn()>,
    pub end: End,
}

/// How its operator ends a server.
#[derive(Clone, Copy)]
pub struct End {
    pub signal: Signal,
    /// The status with which it ends itself then; `None`: the signal kills it.
    pub status: Option<i32>,
}

impl End {
    /// The server ends itself, with this status.
    fn with(signal: Signal, status: i32) -> End {
        End { signal, status: Some(status) }
    }

    /// Nobody ends it: it is killed, with all its processes.
    fn killed() -> End {
        End::by(Signal::SIGKILL)
    }

    /// The signal kills the server.
    fn by(signal: Signal) -> End {
        End { signal, status: None }
    }

    #[track_caller]
    pub fn expect(&self, ended: ExitStatus) {
        use std::os::unix::process::ExitStatusExt;
        let signal = self.status.is_none().then_some(self.signal as i32);
        assert_eq!((ended.code(), ended.signal()), (self.status, signal), "{ended}");
    }
}

/// Where a server is set up.
pub struct Place {
    pub folder: TempDir,
    pub at: SocketAddr,
}

impl Place {
    pub fn new(at: SocketAddr) -> Place {
        let place = Place { folder: tempfile::tempdir().expect("a folder"), at };
        open_to_all(place.folder.path());
        place.folder("work");
        place
    }

    /// Where everything is that the server needs and writes.
    pub fn work(&self) -> PathBuf {
        self.path("work")
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A further folder.
    fn folder(&self, name: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir(&path).unwrap_or_else(|why| panic!("cannot make {}: {why}", path.display()));
        open_to_all(&path);
        path
    }

    /// Its name, for the server.
    fn file(&self, name: &str, text: impl AsRef<[u8]>) -> String {
        let path = self.work().join(name);
        fs::write(&path, text).unwrap_or_else(|why| panic!("cannot write {name}: {why}"));
        path.display().to_string()
    }

    /// Files to be served; nobody writes to them.
    fn site(&self) -> Site {
        Site::create(&self.path("site"), 1_000_000).expect("a site")
    }
}

/// What a test leaves that fails can be looked at.
impl Drop for Place {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.folder.disable_cleanup(true);
            eprintln!("kept: {}", self.folder.path().display());
        }
    }
}

/// The file of a site that is worth to be asked for.
fn large(site: &Site) -> Vec<u8> {
    fs::read(site.root().join(Site::LARGE.trim_start_matches('/'))).expect("the site's file")
}

/// Servers give up their rights, and must reach the files all the same.
fn open_to_all(path: &Path) {
    let mode = fs::Permissions::from_mode(0o755);
    fs::set_permissions(path, mode)
        .unwrap_or_else(|why| panic!("cannot open {} to all: {why}", path.display()));
}

/// The words of a program that is in a package.
fn words(program: &str, package: &str, args: &[&str]) -> Vec<String> {
    let program = find::program(program, package).unwrap_or_else(|why| panic!("{why}"));
    let words = args.iter().map(|&arg| arg.to_owned());
    std::iter::once(program.display().to_string()).chain(words).collect()
}
