//! Servers under the runtime: what clients get is what is in the files, and they end as they do
//! without it.

use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};

use demo::server::{Place, Server};
use demo::site::Site;
use nix::sys::signal::Signal;

use crate::guests::serving::{Running, download, free_port, wait_for};
use crate::proved;

const CLIENTS: usize = 8;

fn serves(server: Server, ends_with: Signal) -> ExitStatus {
    let folder = tempfile::tempdir().unwrap();
    // Workers give up their rights, and must reach the files all the same.
    Command::new("chmod").arg("755").arg(folder.path()).status().unwrap();
    let site = Site::create(&folder.path().join("site"), 3_000_000).unwrap();
    let at = free_port();
    let place = Place { node: "n", dir: folder.path(), site: &site, at };
    let mut words = proved();
    words.extend(server.command(&place).unwrap().into_iter().map(PathBuf::from));
    let running = Running(Command::new(&words[0]).args(&words[1..]).spawn().unwrap());
    wait_for(at);
    let mut expected = Vec::new();
    let path = Site::LARGE;
    let file = site.root().join(path.trim_start_matches('/'));
    std::fs::File::open(file).unwrap().read_to_end(&mut expected).unwrap();
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(|| download(at, path))).collect();
        for client in clients {
            assert!(client.join().unwrap() == expected, "{server} sends something else");
        }
    });
    running.signal(ends_with);
    running.end()
}

#[test]
fn nginx() {
    assert_eq!(serves(Server::Nginx, Signal::SIGQUIT).code(), Some(0));
}

#[test]
fn apache() {
    assert_eq!(serves(Server::Apache, Signal::SIGTERM).code(), Some(0));
}

#[test]
fn python() {
    assert_eq!(serves(Server::Python, Signal::SIGTERM).signal(), Some(Signal::SIGTERM as i32));
}

#[test]
fn busybox() {
    assert_eq!(serves(Server::Busybox, Signal::SIGTERM).signal(), Some(Signal::SIGTERM as i32));
}
