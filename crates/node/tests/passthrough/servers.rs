//! Servers under the runtime: what clients get is what is in the files, and they end as they do
//! without it.

use std::io::Read;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use demo::server::{Place, Server};
use demo::site::Site;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::proved;

const PATIENCE: Duration = Duration::from_secs(30);
const CLIENTS: usize = 8;

/// A server that is ended with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        if self.0.try_wait().is_ok_and(|ended| ended.is_none()) {
            let _ended = self.0.kill().and_then(|()| self.0.wait());
        }
    }
}

impl Running {
    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.0.id().cast_signed()), signal).expect("the server is there");
    }

    fn end(mut self) -> ExitStatus {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.0.try_wait().unwrap() {
                return status;
            }
            assert!(begun.elapsed() < PATIENCE, "the server does not end");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn free_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).unwrap()
}

fn wait_for(at: SocketAddr) {
    let begun = Instant::now();
    while TcpStream::connect(at).is_err() {
        assert!(begun.elapsed() < PATIENCE, "nobody listens at {at}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn download(at: SocketAddr, path: &str) -> Vec<u8> {
    let mut curl = Command::new("curl");
    let output = curl.args(["-sS", "--max-time", "30"]).arg(format!("http://{at}{path}")).output();
    let output = output.expect("curl is there");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}

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
