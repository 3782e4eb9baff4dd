//! Detours: where frames go that the kernel can neither hold nor damage.
//!
//! The problem: a delayed frame must wait somewhere, and a BPF program has no place to keep
//! it; the qdiscs that have (netem, fq) are missing in many kernels. And a frame between
//! namespaces usually carries no checksum yet, only the promise of one, so a bit flipped in
//! place would be blessed by the checksum computed afterwards.
//!
//! So the wire's program sends such frames into a TAP, and a thread of the keeper reads
//! them, waits or flips, and writes them back, where the program `back` returns them to
//! their cable. Every way of a cable has TAPs of its own, made when they are first needed.
//! The delaying one passes super-segments and promised checksums through as they are (the
//! virtio header in front of each frame says so). The damaging one announces no offloads:
//! there the kernel completes checksums and cuts super-segments up before we see them, and
//! what we write back has to prove itself to the receiver.

use std::{
    collections::{BTreeMap, VecDeque},
    fs::{File, OpenOptions},
    io::{self, Read, Write},
    mem::{size_of, zeroed},
    os::{
        fd::{AsFd, AsRawFd},
        unix::fs::OpenOptionsExt,
    },
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc,
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use nix::{
    poll::{PollFd, PollFlags, ppoll},
    sys::{eventfd::EventFd, time::TimeSpec},
};

use crate::{
    damage::{self, Damage},
    dice::{Chance, Dice},
    error::{Doing, Result},
    netlink,
    wires::Wires,
};

/// What a detour does to frames.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    /// DETOUR_CORRUPT of the BPF program.
    Corrupt,
    /// DETOUR_DELAY.
    Delay,
}

/// How many kinds there are: DETOURS.
pub(crate) const KINDS: u32 = 2;

/// How frames are held.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Holding {
    pub(crate) dice: Dice,
    pub(crate) delay: Duration,
    /// Added or taken away, uniformly; frames keep their order all the same.
    pub(crate) jitter: Duration,
    /// How often a frame is overtaken by the next.
    pub(crate) reorder: Chance,
}

/// What befell frames on a detour.
#[derive(Debug, Default)]
pub(crate) struct Counts {
    pub(crate) delayed: AtomicU64,
    pub(crate) reordered: AtomicU64,
    /// Frames for which there was no room, or which the kernel did not take back.
    pub(crate) overflowed: AtomicU64,
}

/// What the TAPs' names begin with; their index follows.
const NAME: &str = "detour";
/// A frame that shall be overtaken goes on alone when nothing comes for so long.
const ALONE_AFTER: Duration = Duration::from_millis(50);
/// Bytes that one detour holds at most: half a second at 1 Gbit/s.
const MOST: usize = 64 << 20;
/// Frames that may wait in the TAP while the thread is not scheduled.
const QUEUE: u32 = 8192;
/// Longest frame: a super-segment with its headers and the virtio header.
const LONGEST: usize = (64 << 10) + 256;
/// Frames read before those that are due are written.
const BATCH: usize = 64;

const DIE_REORDER: u64 = 0;
const DIE_JITTER: u64 = 1;

/// The detours of one lab, by interface index.
#[derive(Debug, Default)]
pub(crate) struct Detours(Mutex<BTreeMap<u32, Detour>>);

impl Detours {
    /// Makes the detour if it is not there, and lets it go by `holding` from now on. What
    /// it held goes out at once. Call inside the switch's namespace.
    pub(crate) fn set(
        &self,
        wires: &Wires,
        index: u32,
        kind: Kind,
        holding: Holding,
    ) -> Result<()> {
        let mut detours = self.lock();
        if let std::collections::btree_map::Entry::Vacant(empty) = detours.entry(index) {
            empty.insert(Detour::start(wires, index, kind)?);
        }
        detours[&index].order(Order::Set(holding));
        Ok(())
    }

    /// Lets what is held go out at once, and holds nothing any more.
    pub(crate) fn release(&self, index: u32) {
        if let Some(detour) = self.lock().get(&index) {
            detour.order(Order::Set(Holding::default()));
        }
    }

    /// Forgets what is held.
    pub(crate) fn discard(&self, index: u32) {
        if let Some(detour) = self.lock().get(&index) {
            detour.order(Order::Discard);
        }
    }

    /// Whether there are any.
    pub(crate) fn is_empty(&self) -> bool {
        self.lock().is_empty()
    }

    /// Zeros if there is no such detour.
    pub(crate) fn counts(&self, index: u32) -> Arc<Counts> {
        self.lock().get(&index).map(|d| d.counts.clone()).unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<u32, Detour>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[derive(Clone, Copy, Debug)]
enum Order {
    Set(Holding),
    Discard,
    Stop,
}

/// An order, and where its completion is told.
type Orders = mpsc::Sender<(Order, mpsc::SyncSender<()>)>;

/// A TAP and its thread; both end when this is dropped.
#[derive(Debug)]
struct Detour {
    orders: Orders,
    wake: Arc<EventFd>,
    counts: Arc<Counts>,
    worker: Option<JoinHandle<()>>,
}

impl Detour {
    fn start(wires: &Wires, index: u32, kind: Kind) -> Result<Detour> {
        let doing = || format!("make the detour {index} (TAP)");
        let tap = open_tap(index, kind).doing(doing)?;
        wires.attach_back(index)?;
        let socket = netlink::Socket::open().doing(doing)?;
        socket.set_queue_len(index, QUEUE).doing(doing)?;
        socket.set_up(index, true).doing(doing)?;
        let (orders, queue) = mpsc::channel();
        let wake = Arc::new(EventFd::new().doing(doing)?);
        let counts = Arc::new(Counts::default());
        let mut thread = Thread {
            tap,
            kind,
            wake: wake.clone(),
            orders: queue,
            line: Line::new(counts.clone()),
            buffer: vec![0; LONGEST],
        };
        let worker = std::thread::Builder::new()
            .name("lab-detour".into())
            .spawn(move || thread.run())
            .doing(doing)?;
        Ok(Detour { orders, wake, counts, worker: Some(worker) })
    }

    /// Returns when it is carried out.
    fn order(&self, order: Order) {
        let (done, wait) = mpsc::sync_channel(1);
        self.orders.send((order, done)).expect("the thread ends only when told to");
        self.wake.write(1).expect("an eventfd takes a one");
        wait.recv().expect("the thread ends only when told to");
    }
}

impl Drop for Detour {
    fn drop(&mut self) {
        self.order(Order::Stop);
        if let Some(worker) = self.worker.take() {
            worker.join().expect("the detour's thread does not panic");
        }
    }
}

struct Thread {
    tap: File,
    kind: Kind,
    wake: Arc<EventFd>,
    orders: mpsc::Receiver<(Order, mpsc::SyncSender<()>)>,
    line: Line,
    buffer: Vec<u8>,
}

impl Thread {
    fn run(&mut self) {
        // A due frame shall not wait for other timers to come along.
        let _ = nix::sys::prctl::set_timerslack(1); // 50 µs later is late, not wrong
        loop {
            self.write_due();
            let (orders, frames) = self.wait();
            if orders && !self.obey() {
                return;
            }
            if frames {
                self.read_some();
            }
        }
    }

    /// Whether there are orders and whether there are frames; or else something is due.
    fn wait(&self) -> (bool, bool) {
        let left = self.line.next_due().map(|at| at.saturating_duration_since(Instant::now()));
        let mut fds = [
            PollFd::new(self.wake.as_fd(), PollFlags::POLLIN),
            PollFd::new(self.tap.as_fd(), PollFlags::POLLIN),
        ];
        // An interrupted wait is one in which nothing happened.
        let _ = ppoll(&mut fds, left.map(TimeSpec::from_duration), None);
        (fds[0].any() == Some(true), fds[1].any() == Some(true))
    }

    /// Carries orders out; `false` if it shall stop.
    fn obey(&mut self) -> bool {
        self.wake.read().expect("it was readable");
        while let Ok((order, done)) = self.orders.try_recv() {
            match order {
                Order::Set(holding) => {
                    // What the TAP has belongs to the time before, as what is held does.
                    while self.read_some() {}
                    self.line.set(holding);
                    self.write_due();
                }
                Order::Discard => {
                    while self.read_some() {}
                    self.line.discard();
                }
                Order::Stop => {
                    let _ = done.send(()); // the owner waits in `order`
                    return false;
                }
            }
            let _ = done.send(()); // likewise
        }
        true
    }

    /// Reads what the TAP has, a bounded number of frames; `true` if there may be more.
    fn read_some(&mut self) -> bool {
        for _ in 0..BATCH {
            // An error means that nothing is there, or will be until the next poll.
            let Ok(len) = self.tap.read(&mut self.buffer) else { return false };
            let frame = &mut self.buffer[..len];
            match self.kind {
                Kind::Delay => self.line.arrive(frame, Instant::now()),
                Kind::Corrupt => {
                    if self.line.damage(frame) && self.tap.write(frame).is_err() {
                        self.line.counts.overflowed.fetch_add(1, Relaxed);
                    }
                }
            }
        }
        true
    }

    fn write_due(&mut self) {
        while let Some(frame) = self.line.leave(Instant::now()) {
            if self.tap.write(&frame).is_err() {
                self.line.counts.overflowed.fetch_add(1, Relaxed);
            }
        }
    }
}

/// What is on its way, without any input or output.
struct Line {
    holding: Holding,
    /// Frames so far under `holding`.
    n: u64,
    /// Instants never step back from front to back.
    queue: VecDeque<(Instant, Vec<u8>)>,
    /// Frames that the next one shall overtake, and until when they wait for it.
    overtaken: Vec<Vec<u8>>,
    alone_at: Option<Instant>,
    /// Held altogether; at most [`MOST`].
    bytes: usize,
    counts: Arc<Counts>,
}

impl Line {
    fn new(counts: Arc<Counts>) -> Line {
        Line {
            holding: Holding::default(),
            n: 0,
            queue: VecDeque::new(),
            overtaken: Vec::new(),
            alone_at: None,
            bytes: 0,
            counts,
        }
    }

    fn arrive(&mut self, frame: &[u8], now: Instant) {
        let (Holding { dice, delay, jitter, reorder }, n) = (self.holding, self.n);
        self.n += 1;
        if self.bytes + frame.len() > MOST {
            self.counts.overflowed.fetch_add(1, Relaxed);
            return;
        }
        self.bytes += frame.len();
        if delay + jitter > Duration::ZERO {
            self.counts.delayed.fetch_add(1, Relaxed);
        }
        if dice.hit(n, DIE_REORDER, reorder) {
            self.overtaken.push(frame.to_vec());
            self.alone_at.get_or_insert(now + delay + ALONE_AFTER);
            return;
        }
        let spread = u64::try_from(2 * jitter.as_nanos() + 1).unwrap_or(u64::MAX);
        let more = Duration::from_nanos(dice.below(n, DIE_JITTER, spread));
        let due = now + (delay + more).saturating_sub(jitter);
        self.enqueue(due, frame.to_vec());
        self.counts.reordered.fetch_add(self.overtaken.len() as u64, Relaxed);
        self.let_overtaken_go(due);
    }

    /// The next frame that is due.
    fn leave(&mut self, now: Instant) -> Option<Vec<u8>> {
        if self.alone_at.is_some_and(|at| at <= now) {
            self.let_overtaken_go(now);
        }
        self.queue.front().filter(|(due, _)| *due <= now)?;
        let (_, frame) = self.queue.pop_front()?;
        self.bytes -= frame.len();
        Some(frame)
    }

    /// When [`leave`](Self::leave) has something to do.
    fn next_due(&self) -> Option<Instant> {
        self.queue.front().map(|(due, _)| *due).into_iter().chain(self.alone_at).min()
    }

    /// Other rules from now on; everything held so far is due.
    fn set(&mut self, holding: Holding) {
        let now = Instant::now();
        self.let_overtaken_go(now);
        for (due, _) in &mut self.queue {
            *due = now;
        }
        (self.holding, self.n) = (holding, 0);
    }

    fn discard(&mut self) {
        self.queue.clear();
        self.overtaken.clear();
        (self.alone_at, self.bytes) = (None, 0);
    }

    /// Flips a bit; `false` if the frame has none that a checksum covers.
    fn damage(&mut self, frame: &mut [u8]) -> bool {
        let n = self.n;
        self.n += 1;
        damage::flip(frame, self.holding.dice, n) != Damage::Uncovered
    }

    fn let_overtaken_go(&mut self, due: Instant) {
        self.alone_at = None;
        for frame in std::mem::take(&mut self.overtaken) {
            self.enqueue(due, frame);
        }
    }

    fn enqueue(&mut self, due: Instant, frame: Vec<u8>) {
        let due = self.queue.back().map_or(due, |(last, _)| due.max(*last));
        self.queue.push_back((due, frame));
    }
}

/// Frames that detours had no room for because their threads were late, by interface index,
/// from `/proc/net/dev`.
pub(crate) fn late_drops(text: &str) -> BTreeMap<u32, u64> {
    let parse = |line: &str| {
        let (name, numbers) = line.trim().split_once(':')?;
        let index = name.strip_prefix(NAME)?.parse().ok()?;
        let drop = numbers.split_whitespace().nth(11)?.parse().ok()?; // of sent frames
        Some((index, drop))
    };
    text.lines().filter_map(parse).collect()
}

/// A TAP of a given interface index in the calling thread's network namespace. With
/// [`Kind::Delay`] every frame has a virtio header in front.
fn open_tap(index: u32, kind: Kind) -> io::Result<File> {
    let nonblocking = libc::O_NONBLOCK | libc::O_CLOEXEC;
    let mut options = OpenOptions::new();
    let tap = options.read(true).write(true).custom_flags(nonblocking).open("/dev/net/tun")?;
    let number = index as libc::c_int;
    // SAFETY: plain data, zero is valid.
    let mut request: libc::ifreq = unsafe { zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(format!("{NAME}{index}").bytes()) {
        *to = from as libc::c_char;
    }
    let offloads = match kind {
        Kind::Corrupt => 0,
        Kind::Delay => libc::IFF_VNET_HDR,
    };
    request.ifr_ifru.ifru_flags = (libc::IFF_TAP | libc::IFF_NO_PI | offloads) as libc::c_short;
    let check = |rc: libc::c_int| if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(()) };
    // SAFETY: the kernel reads an int and reads and writes an ifreq; both outlive the calls.
    unsafe {
        check(libc::ioctl(tap.as_raw_fd(), libc::TUNSETIFINDEX as _, &raw const number))?;
        check(libc::ioctl(tap.as_raw_fd(), libc::TUNSETIFF as _, &raw mut request))?;
    }
    if kind == Kind::Delay {
        let takes = libc::TUN_F_CSUM | libc::TUN_F_TSO4 | libc::TUN_F_TSO6 | libc::TUN_F_TSO_ECN;
        // SAFETY: this request takes a number.
        unsafe {
            let takes = libc::c_ulong::from(takes);
            check(libc::ioctl(tap.as_raw_fd(), libc::TUNSETOFFLOAD as _, takes))?;
        }
    }
    const _: () = assert!(size_of::<libc::ifreq>() >= 18);
    Ok(tap)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn line(holding: Holding) -> Line {
        let mut line = Line::new(Arc::default());
        line.set(holding);
        line
    }

    #[test]
    fn frames_leave_when_they_are_due_and_in_order() {
        let mut line =
            line(Holding { dice: Dice(1), delay: 10 * MS, jitter: 5 * MS, ..Holding::default() });
        let start = Instant::now();
        for n in 0..100u8 {
            line.arrive(&[n], start + u32::from(n) * MS);
        }
        let mut at = start;
        for n in 0..100u8 {
            at = at.max(line.next_due().unwrap());
            assert_eq!(line.leave(at - Duration::from_nanos(1)), None);
            assert_eq!(line.leave(at), Some(vec![n]));
            let took = at - (start + u32::from(n) * MS);
            assert!((5 * MS..=15 * MS).contains(&took), "frame {n} took {took:?}");
        }
        assert_eq!((line.next_due(), line.bytes), (None, 0));
        assert_eq!(line.counts.delayed.load(Relaxed), 100);
    }

    #[test]
    fn a_frame_is_overtaken_by_the_next_or_goes_alone() {
        let mut line = line(Holding { reorder: Chance::ALWAYS, ..Holding::default() });
        let now = Instant::now();
        line.arrive(&[1], now);
        assert_eq!(line.leave(now), None);
        line.holding.reorder = Chance::NEVER;
        line.arrive(&[2], now);
        assert_eq!([line.leave(now), line.leave(now)], [Some(vec![2]), Some(vec![1])]);
        assert_eq!(line.counts.reordered.load(Relaxed), 1);
        line.holding.reorder = Chance::ALWAYS;
        line.arrive(&[3], now);
        assert_eq!(line.next_due(), Some(now + ALONE_AFTER));
        assert_eq!(line.leave(now + ALONE_AFTER), Some(vec![3]));
        assert_eq!(line.counts.reordered.load(Relaxed), 1, "nothing overtook it");
    }

    #[test]
    fn drops_of_late_detours_are_found() {
        let text = "Inter-|   Receive          |  Transmit\n\
                    \x20a.svc:  1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n\
                    detour517: 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16\n";
        assert_eq!(late_drops(text), BTreeMap::from([(517, 12)]));
    }

    #[test]
    fn new_rules_let_everything_go_and_memory_is_bounded() {
        let mut line = line(Holding { delay: 1000 * MS, ..Holding::default() });
        let big = vec![0; 1 << 20];
        for _ in 0..70 {
            line.arrive(&big, Instant::now());
        }
        assert_eq!((line.queue.len(), line.counts.overflowed.load(Relaxed)), (64, 6));
        line.set(Holding::default());
        let now = Instant::now();
        assert_eq!(std::iter::from_fn(|| line.leave(now)).count(), 64);
        line.arrive(&big, now);
        line.discard();
        assert_eq!((line.leave(now), line.bytes), (None, 0));
    }
}
