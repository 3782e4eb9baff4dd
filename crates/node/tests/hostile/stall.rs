//! The backup's daemon stops, or gets no more memory, while clients send more than it can hold.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use e2e::machine::DETECTION_MS;
use e2e::undisturbed;

use crate::stage::{Client, Family, Stage};

const RING: u64 = 1 << 20;
const CLIENTS: usize = 8;

/// Clients that send and receive until they are told to stop.
struct Uploads {
    threads: Vec<std::thread::JoinHandle<Client>>,
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
}

impl Uploads {
    fn begin(clients: Vec<Client>) -> Self {
        let (stop, sent) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let upload = |mut client: Client| {
            let (stop, sent) = (stop.clone(), sent.clone());
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    client.expect_echo(8192, "while the backup's daemon is stopped");
                    sent.fetch_add(8192, Ordering::Relaxed);
                }
                client
            })
        };
        let threads = clients.into_iter().map(upload).collect();
        Self { threads, stop, sent }
    }

    fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    fn end(self) -> Vec<Client> {
        self.stop.store(true, Ordering::Relaxed);
        self.threads.into_iter().map(|thread| thread.join().expect("an upload broke")).collect()
    }
}

fn pair(family: Family, detection_ms: u32) -> Stage {
    Stage::pair_with(family, |config| {
        config
            .replace("startup_wait_ms = 1500\n", "startup_wait_ms = 4000\n")
            .replace(
                &format!("detection_ms = {DETECTION_MS}\n"),
                &format!("detection_ms = {detection_ms}\n"),
            )
            .replace("[[service]]", "[budget]\nring_mib = 1\n\n[[service]]")
    })
}

fn connected(stage: &Stage) -> Vec<Client> {
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| stage.connect()).collect();
    for client in &mut clients {
        client.expect_echo(10_000, "before");
    }
    clients
}

/// For less than the detection time: whatever finds no place in the ring is sent again.
fn a_full_ring_slows_uploads_down_and_breaks_none(family: Family) {
    const STILL: Duration = Duration::from_millis(100);
    let stage = pair(family, 2000);
    let epoch = stage.status("a")["epoch"].clone();
    let uploads = Uploads::begin(connected(&stage));
    let daemon = stage.lab.node("b").unwrap();
    daemon.signal(libc::SIGSTOP).unwrap();
    // Until the ring is full, and nobody gets on.
    let (begun, mut seen, mut since) = (Instant::now(), uploads.sent(), Instant::now());
    let before = seen;
    while since.elapsed() < STILL {
        assert!(begun.elapsed() < Duration::from_millis(1500), "the ring does not fill up in time");
        std::thread::sleep(Duration::from_millis(5));
        if std::mem::replace(&mut seen, uploads.sent()) != uploads.sent() {
            since = Instant::now();
        }
    }
    // Payload alone: what more there is in a record fills the ring sooner.
    assert!(seen - before <= RING + CLIENTS as u64 * 65_536, "more than the ring holds was echoed");
    daemon.signal(libc::SIGCONT).unwrap();
    stage.until("uploads get on", || uploads.sent() > seen + 4 * RING);

    let status = stage.status("b");
    assert!(status["counters"]["drop_ring_full"].as_u64() > Some(0), "{status}");
    assert_eq!(status["flows"]["tracked"], CLIENTS, "no flow was given up: {status}");
    let status = stage.status("a");
    assert_eq!((&status["epoch"], &status["duplex"]), (&epoch, &true.into()), "{status}");
    stage.kill_host("a");
    let resumed = uploads.sent();
    stage.until("uploads survive the primary", || uploads.sent() > resumed + RING);
    uploads.end();
    // The data path opens a flow by itself; the daemon's books follow.
    stage.until("b counts the takeovers", || stage.status("b")["takeover"]["adopted"] == CLIENTS);
    let status = stage.status("b");
    assert_eq!(status["takeover"]["reset"], 0, "{status}");
}

/// For longer: the primary goes on alone. When the daemon runs again, it has a part of every stream
/// and must not continue one of them.
fn a_backup_that_slept_continues_nothing_that_it_missed(family: Family) {
    let stage = pair(family, DETECTION_MS);
    let uploads = Uploads::begin(connected(&stage));
    let daemon = stage.lab.node("b").unwrap();
    daemon.signal(libc::SIGSTOP).unwrap();
    stage.until("a goes on alone", || {
        let status = stage.status("a");
        status["duplex"] == false && status["holding"] == true
    });
    let alone = uploads.sent();
    stage.until("uploads get on", || uploads.sent() > alone + 8 * RING);
    daemon.signal(libc::SIGCONT).unwrap();
    stage.until("b protects again", || {
        stage.status("a")["duplex"] == true && stage.status("b")["ready"] == true
    });
    let again = uploads.sent();
    stage.until("uploads get on with a backup", || uploads.sent() > again + RING);
    let old = uploads.end();
    let status = stage.status("b");
    assert_eq!(status["flows"]["tracked"], 0, "what was missed is not protected: {status}");

    let mut new = connected(&stage);
    stage.kill_host("a");
    for client in &mut new {
        client.expect_echo(100_000, "protected by the backup that slept");
    }
    for mut client in old {
        // Other bytes would fail the test inside.
        let error = client.echo(10_000).expect_err("nobody has what this connection needs");
        assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "{error}");
    }
    // The data path opens a flow by itself; the daemon's books follow.
    stage.until("b counts the takeovers", || stage.status("b")["takeover"]["adopted"] == CLIENTS);
}

/// Memory that the host refuses is no reason to go on without it: the daemon ends, and the primary
/// alone goes on.
#[test]
fn a_backup_without_memory_ends_and_breaks_no_upload() {
    undisturbed(|| {
        let stage = pair(Family::V4, DETECTION_MS);
        let uploads = Uploads::begin(connected(&stage));
        let daemon = stage.lab.node("b").unwrap();
        let nothing = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        let pid = daemon.pid() as libc::pid_t;
        // SAFETY: the new limit lives through the call, and the old one is not asked for.
        let set = unsafe { libc::prlimit(pid, libc::RLIMIT_AS, &nothing, std::ptr::null_mut()) };
        assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
        stage.until("b's daemon ends", || daemon.ended().unwrap().is_some());
        stage.until("a goes on alone", || {
            let status = stage.status("a");
            status["duplex"] == false && status["holding"] == true
        });
        let alone = uploads.sent();
        stage.until("uploads get on", || uploads.sent() > alone + RING);
        stage.lab.start_again("b").unwrap();
        stage.until("b protects again", || stage.status("a")["duplex"] == true);
        for mut client in uploads.end() {
            client.expect_echo(10_000, "beside a new backup");
        }
    });
}

#[test]
fn a_full_ring_slows_uploads_down() {
    undisturbed(|| a_full_ring_slows_uploads_down_and_breaks_none(Family::V4));
}

#[test]
fn a_full_ring_slows_uploads_down_over_ipv6() {
    undisturbed(|| a_full_ring_slows_uploads_down_and_breaks_none(Family::V6));
}

#[test]
fn a_backup_that_slept_continues_nothing() {
    undisturbed(|| a_backup_that_slept_continues_nothing_that_it_missed(Family::V4));
}

#[test]
fn a_backup_that_slept_continues_nothing_over_ipv6() {
    undisturbed(|| a_backup_that_slept_continues_nothing_that_it_missed(Family::V6));
}
