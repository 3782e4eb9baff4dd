//! The shop without nodes: its clients find nothing wrong with it, and notice when it dies.

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};
use std::time::Duration;

use demo::clock::Bell;
use demo::shop::{self, Audit, Crowd, CrowdSpec, Kind, Notes, Trouble, read_logs};
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use tempfile::TempDir;

const PATIENCE: Duration = Duration::from_secs(10);

/// A shop on loopback; dropped, it is gone.
struct Shop {
    at: SocketAddr,
    dir: TempDir,
    process: Child,
}

impl Shop {
    fn open() -> Shop {
        use std::os::unix::process::CommandExt;
        // Each has an address of its own: a port that was free for one test is not given to another one.
        static SHOPS: AtomicU8 = AtomicU8::new(1);
        let ip = Ipv4Addr::new(127, 0, 0, SHOPS.fetch_add(1, Relaxed));
        let free = TcpListener::bind((ip, 0)).unwrap();
        let (at, dir) = (free.local_addr().unwrap(), tempfile::tempdir().unwrap());
        drop(free);
        let words = shop::command("a", dir.path(), at).unwrap();
        let mut command = Command::new(&words[0]);
        let process = command.args(&words[1..]).stdin(Stdio::null()).process_group(0);
        let shop = Shop { at, dir, process: process.spawn().unwrap() };
        let listens = || TcpStream::connect(at).is_ok();
        assert!(Bell::default().wait_until(PATIENCE, listens), "{words:?} does not listen");
        shop
    }

    fn crowd(&self, clients: usize, each: usize, bell: &Bell) -> Crowd {
        let at = self.at;
        let spec = CrowdSpec {
            clients,
            each,
            patience: PATIENCE,
            seed: 7,
            dial: Arc::new(move || TcpStream::connect_timeout(&at, PATIENCE)),
        };
        Crowd::start(&spec, bell).unwrap()
    }

    fn audit(&self, notes: &[Notes]) -> Audit {
        Audit::new(notes, &read_logs(self.dir.path()).unwrap(), &[])
    }

    /// Kills the server with its workers, as one group of processes.
    fn kill(&mut self) {
        let group = Pid::from_raw(i32::try_from(self.process.id()).unwrap());
        let _ = killpg(group, Signal::SIGKILL); // gone already: fine
        let _ = self.process.wait();
    }
}

impl Drop for Shop {
    fn drop(&mut self) {
        self.kill();
    }
}

#[test]
fn the_shop_does_what_its_clients_want() {
    let shop = Shop::open();
    let notes = shop.crowd(64, 30, &Bell::default()).finish();
    let failures: Vec<_> = notes.iter().flat_map(|n| &n.failures).collect();
    assert!(failures.is_empty(), "{failures:#?}");
    let audit = shop.audit(&notes);
    let replies: usize = notes.iter().map(|n| n.receipts.len()).sum();
    assert_eq!((audit.faults, audit.twice), (vec![], vec![]));
    assert_eq!((audit.confirmed.len(), audit.executions, replies), (1, 64 * 30, 64 * 30));
    for kind in Kind::ALL {
        let sent = notes.iter().flat_map(|n| &n.sent).filter(|(_, k)| *k == kind).count();
        assert!(sent > 0, "nobody asked for {}", kind.name());
    }
}

#[test]
fn clients_notice_when_the_shop_dies() {
    let mut shop = Shop::open();
    let bell = Bell::default();
    let crowd = shop.crowd(16, 1000, &bell);
    let busy = || crowd.replies().iter().all(|&replies| replies > 0);
    assert!(bell.wait_until(PATIENCE, busy), "some client got no reply");
    shop.kill();
    let notes = crowd.finish();
    // What came before is right.
    assert_eq!(shop.audit(&notes).faults, Vec::<String>::new());
    for client in &notes {
        let of_death = [Trouble::Reset, Trouble::Cut, Trouble::Refused];
        assert!(!client.failures.is_empty());
        let odd: Vec<_> =
            client.failures.iter().filter(|f| !of_death.contains(&f.trouble)).collect();
        assert!(odd.is_empty(), "{odd:#?}");
    }
}
