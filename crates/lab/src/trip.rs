//! Trips: hosts that die in the instant in which a chosen frame passes a cable.
//!
//! The problem: a test that kills a host "between two frames" from user space is late by
//! thousands of frames. So the wire's own program watches for the frame and stores the
//! victims' cut words in the same run; nothing can pass in between. Then it tells the
//! keeper, whose thread kills the victims' processes: by then they are silent anyway.

use std::{
    collections::BTreeMap,
    os::fd::{AsFd, BorrowedFd},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak, atomic::Ordering::SeqCst},
    thread::JoinHandle,
    time::{Duration, Instant, SystemTime},
};

use libbpf_rs::RingBufferBuilder;
use nix::{
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::eventfd::EventFd,
    time::{ClockId, clock_gettime},
};

use crate::{
    error::{Doing, Error, Result},
    host::{Host, Running},
    lab::Lab,
    topology::Link,
    wires::{Way, Wires, slot, word},
};

/// ON_TRIP of the BPF program.
const ON_TRIP: u32 = 4;
/// Ways of all cables of a host.
const SLOTS: usize = 4;
const _: () = assert!(SLOTS == Link::ALL.len() * Way::BOTH.len());

/// Frames, by what their headers say. `None` and 0 match anything; the default matches
/// every frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameFilter {
    /// The IP version.
    pub version: Option<IpVersion>,
    /// The transport protocol. IPv6 extension headers are not looked behind.
    pub transport: Option<Transport>,
    /// The source port.
    pub source: Option<u16>,
    /// The destination port.
    pub destination: Option<u16>,
    /// TCP flags that are all set, such as `FrameFilter::SYN | FrameFilter::ACK`.
    pub flags: u8,
    /// TCP flags that are all clear.
    pub without: u8,
    /// Whether the TCP segment or UDP datagram carries anything.
    pub payload: Option<bool>,
}

impl FrameFilter {
    /// TCP flag.
    pub const FIN: u8 = 0x01;
    /// TCP flag.
    pub const SYN: u8 = 0x02;
    /// TCP flag.
    pub const RST: u8 = 0x04;
    /// TCP flag.
    pub const PSH: u8 = 0x08;
    /// TCP flag.
    pub const ACK: u8 = 0x10;
}

/// An IP version.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IpVersion {
    /// IPv4.
    V4 = 4,
    /// IPv6.
    V6 = 6,
}

/// A transport protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Transport {
    /// TCP.
    Tcp,
    /// UDP.
    Udp,
    /// Another one, by its number.
    Other(u8),
}

impl Transport {
    fn number(self) -> u8 {
        match self {
            Transport::Tcp => libc::IPPROTO_TCP as u8,
            Transport::Udp => libc::IPPROTO_UDP as u8,
            Transport::Other(number) => number,
        }
    }
}

/// "When the `nth` frame that matches passes here, these hosts are cut."
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trip {
    /// One cable, such as `a.svc`.
    pub link: String,
    /// Which way of it. A frame passes when cuts and faults have let it through.
    pub way: Way,
    /// Which frames count.
    pub frame: FrameFilter,
    /// 1 for the first that matches from now on.
    pub nth: u32,
    /// The frame itself is lost too.
    pub swallow: bool,
    /// Hosts whose cables are all cut, both ways, each host by one store.
    pub victims: Vec<String>,
    /// Also kill the victims, as [`Lab::kill_host`] does; else they stay cut until healed.
    pub kill: bool,
}

/// What a trip did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tripped {
    /// When the frame passed and the cables were cut.
    pub at: Instant,
    /// The same instant on the wall clock, which captures use.
    pub wall: SystemTime,
    /// The hosts that were killed; one that was down already, or was booted again since the
    /// trip was armed, is not.
    pub killed: Vec<String>,
}

/// A trip that is armed. Dropping this does not disarm it.
#[derive(Clone, Debug)]
pub struct Armed(Arc<Outcome>);

#[derive(Debug, Default)]
struct Outcome {
    /// What happened, or in words why the victims could not be killed.
    done: Mutex<Option<Result<Tripped, String>>>,
    changed: Condvar,
}

impl Armed {
    /// Waits until it has tripped and the victims are dead; `None` if `timeout` passes
    /// first.
    ///
    /// # Errors
    /// A victim could not be killed.
    pub fn wait(&self, timeout: Duration) -> Result<Option<Tripped>> {
        let done = self.0.done.lock().unwrap_or_else(PoisonError::into_inner);
        let (done, _) = self
            .0
            .changed
            .wait_timeout_while(done, timeout, |done| done.is_none())
            .unwrap_or_else(PoisonError::into_inner);
        done.clone().transpose().map_err(Error::Refused)
    }
}

/// Armed trips, by place: host and way.
type Pending = Mutex<BTreeMap<(usize, usize), Waiting>>;

#[derive(Debug)]
struct Waiting {
    /// Each victim as it is now: one that is booted again is another.
    victims: Vec<(Host, Weak<Running>)>,
    kill: bool,
    outcome: Arc<Outcome>,
}

/// A lab's trips and the thread that hears of them, which begins with the first.
#[derive(Debug, Default)]
pub(crate) struct Trips {
    pending: Arc<Pending>,
    listener: Mutex<Option<Listener>>,
}

#[derive(Debug)]
struct Listener {
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.stop.write(1).expect("an eventfd takes a one");
        if let Some(thread) = self.thread.take() {
            thread.join().expect("the trips' thread does not panic");
        }
    }
}

impl Trips {
    fn pending(&self) -> MutexGuard<'_, BTreeMap<(usize, usize), Waiting>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stops listening: before the hosts go, and the lab with them.
    pub(crate) fn stop(&self) {
        self.listener.lock().unwrap_or_else(PoisonError::into_inner).take();
    }

    fn listen(&self, wires: &Arc<Wires>) -> Result<()> {
        let mut listener = self.listener.lock().unwrap_or_else(PoisonError::into_inner);
        if listener.is_some() {
            return Ok(());
        }
        let doing = || "listen for trips".to_owned();
        let stop = Arc::new(EventFd::new().doing(doing)?);
        let (told, wires, pending) = (stop.clone(), wires.clone(), self.pending.clone());
        let thread = std::thread::Builder::new()
            .name("lab-trips".into())
            .spawn(move || hear(&wires, &pending, told.as_fd()))
            .doing(doing)?;
        *listener = Some(Listener { stop, thread: Some(thread) });
        Ok(())
    }
}

/// The listening thread's life.
fn hear(wires: &Wires, pending: &Pending, stop: BorrowedFd<'_>) {
    let places = Mutex::new(Vec::new());
    let mut builder = RingBufferBuilder::new();
    let read = |entry: &[u8]| {
        let place = entry.try_into().map(u64::from_ne_bytes).expect("entries are 8 bytes");
        places.lock().unwrap_or_else(PoisonError::into_inner).push(place as usize);
        0
    };
    builder.add(&wires.tripped, read).expect("it is a ring buffer");
    let ring = builder.build().expect("the ring buffer can be mapped");
    // SAFETY: the descriptor lives as long as `ring`, which outlives its use here.
    let epoll = unsafe { BorrowedFd::borrow_raw(ring.epoll_fd()) };
    loop {
        let mut fds = [PollFd::new(stop, PollFlags::POLLIN), PollFd::new(epoll, PollFlags::POLLIN)];
        let _ = poll(&mut fds, PollTimeout::NONE); // interrupted: look all the same
        if fds[0].any() == Some(true) {
            return;
        }
        ring.consume().expect("the callback returns no error");
        for place in places.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            let (host, slot) = (place / SLOTS, place % SLOTS);
            let mut pending = pending.lock().unwrap_or_else(PoisonError::into_inner);
            let at = word!(wires, host, slot, AtomicU64, trip.at).load(SeqCst);
            if at == 0 {
                continue; // told by the trip that the one there now has replaced
            }
            word!(wires, host, slot, AtomicU32, on).fetch_and(!ON_TRIP, SeqCst);
            let waiting = pending.remove(&(host, slot));
            drop(pending);
            if let Some(waiting) = waiting {
                waiting.finish(at);
            }
        }
    }
}

impl Waiting {
    /// Kills the victims and tells who waits. `at_ns`: on the monotonic clock.
    fn finish(self, at_ns: u64) {
        let now = clock_gettime(ClockId::CLOCK_MONOTONIC).expect("every kernel has this clock");
        let ago = Duration::from(now).saturating_sub(Duration::from_nanos(at_ns));
        let (at, wall) = (Instant::now() - ago, SystemTime::now() - ago);
        let victims = if self.kill { self.victims } else { Vec::new() };
        let mut killed = Vec::new();
        let mut failed = Ok(());
        for (host, then) in victims {
            match kill(&host, &then) {
                Ok(true) => killed.push(host.name().to_owned()),
                Ok(false) => {}
                Err(e) => failed = Err(e.to_string()),
            }
        }
        let done = failed.map(|()| Tripped { at, wall, killed });
        *self.outcome.done.lock().unwrap_or_else(PoisonError::into_inner) = Some(done);
        self.outcome.changed.notify_all();
    }
}

/// Kills a host's processes if it is still the one it was; `false` if it is not.
fn kill(host: &Host, then: &Weak<Running>) -> Result<bool> {
    let mut slot = host.slot();
    let same = slot.as_ref().is_some_and(|now| std::ptr::eq(Arc::as_ptr(now), then.as_ptr()));
    if !same {
        return Ok(false);
    }
    let running = slot.take().expect("it is the same");
    running.strike()?;
    running.bury()?;
    Ok(true)
}

impl Lab {
    /// Arms a trip. One that is armed on the same way already is replaced: nobody hears of
    /// it any more, and its victims are not killed.
    ///
    /// # Errors
    /// [`Error::NoLink`] unless the link is one cable, [`Error::NoHost`], or `nth` is 0.
    pub fn arm(&self, trip: &Trip) -> Result<Armed> {
        let (host, link) = self.topology.cable(&trip.link)?;
        if trip.nth == 0 {
            return Err(Error::Refused(
                "a trip waits for the 0th frame; the first is number 1".into(),
            ));
        }
        let victims =
            trip.victims.iter().map(|name| self.host(name)).collect::<Result<Vec<_>>>()?;
        let mask: u32 = victims.iter().map(|h| 1 << h.spec().index).fold(0, |a, b| a | b);
        let now = |h: &&Host| {
            let running = h.slot().as_ref().map_or_else(Weak::new, Arc::downgrade);
            ((*h).clone(), running)
        };
        let victims = victims.iter().map(now).collect();
        self.trips.listen(&self.switch.wires)?;

        let (wires, slot) = (&self.switch.wires, slot(link, trip.way));
        let mut pending = self.trips.pending();
        let on = word!(wires, host, slot, AtomicU32, on);
        on.fetch_and(!ON_TRIP, SeqCst);
        let f = &trip.frame;
        word!(wires, host, slot, AtomicU64, trip.at).store(0, SeqCst);
        let words = [
            (word!(wires, host, slot, AtomicU32, trip.nth), trip.nth),
            (word!(wires, host, slot, AtomicU32, trip.seen), 0),
            (word!(wires, host, slot, AtomicU32, trip.victims), mask),
            (word!(wires, host, slot, AtomicU32, trip.swallow), trip.swallow.into()),
            (
                word!(wires, host, slot, AtomicU32, trip.payload),
                f.payload.map_or(0, |some| if some { 1 } else { 2 }),
            ),
        ];
        for (word, value) in words {
            word.store(value, SeqCst);
        }
        for (word, value) in [
            (word!(wires, host, slot, AtomicU16, trip.source), f.source),
            (word!(wires, host, slot, AtomicU16, trip.destination), f.destination),
        ] {
            word.store(value.unwrap_or(0), SeqCst);
        }
        for (word, value) in [
            (word!(wires, host, slot, AtomicU8, trip.version), f.version.map_or(0, |v| v as u8)),
            (
                word!(wires, host, slot, AtomicU8, trip.protocol),
                f.transport.map_or(0, Transport::number),
            ),
            (word!(wires, host, slot, AtomicU8, trip.flags_set), f.flags),
            (word!(wires, host, slot, AtomicU8, trip.flags_clear), f.without),
        ] {
            word.store(value, SeqCst);
        }
        let outcome = Arc::new(Outcome::default());
        let waiting = Waiting { victims, kill: trip.kill, outcome: outcome.clone() };
        pending.insert((host, slot), waiting);
        on.fetch_or(ON_TRIP, SeqCst);
        Ok(Armed(outcome))
    }

    /// Disarms the trips of a link, both ways.
    ///
    /// # Errors
    /// [`Error::NoLink`].
    pub fn disarm(&self, link: &str) -> Result<()> {
        for (host, link) in self.topology.cables(link)? {
            for way in Way::BOTH {
                let slot = slot(link, way);
                let mut pending = self.trips.pending();
                let on = word!(self.switch.wires, host, slot, AtomicU32, on);
                on.fetch_and(!ON_TRIP, SeqCst);
                pending.remove(&(host, slot));
            }
        }
        Ok(())
    }

    pub(crate) fn is_armed(&self, host: usize, link: Link, way: Way) -> bool {
        let on = word!(self.switch.wires, host, slot(link, way), AtomicU32, on);
        on.load(SeqCst) & ON_TRIP != 0
    }
}
