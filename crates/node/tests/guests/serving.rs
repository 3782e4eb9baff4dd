//! Servers that tests run, and their clients.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// Servers begin and end within it.
const PATIENCE: Duration = Duration::from_secs(30);

/// A server that is ended with the test.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        if self.0.try_wait().is_ok_and(|ended| ended.is_none()) {
            let _ended = self.0.kill().and_then(|()| self.0.wait());
        }
    }
}

impl Running {
    pub fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.0.id().cast_signed()), signal).expect("the server is there");
    }

    pub fn end(mut self) -> ExitStatus {
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

/// Where nobody listens.
pub fn free_port() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr()).unwrap()
}

/// Waits until somebody listens there.
pub fn wait_for(at: SocketAddr) {
    let begun = Instant::now();
    while TcpStream::connect(at).is_err() {
        assert!(begun.elapsed() < PATIENCE, "nobody listens at {at}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// What a client gets.
pub fn download(at: SocketAddr, path: &str) -> Vec<u8> {
    let mut curl = Command::new("curl");
    let output = curl.args(["-sS", "--max-time", "30"]).arg(format!("http://{at}{path}")).output();
    let output = output.expect("curl is there");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    output.stdout
}
