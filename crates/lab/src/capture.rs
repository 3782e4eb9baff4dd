//! Captures: pcap files of what passes a point of the switch.
//!
//! A thread of the keeper reads a packet socket that was opened inside the switch. So a
//! capture needs no tcpdump, ends with the keeper, and carries the kernel's own time of
//! arrival in nanoseconds, taken before any program of the lab sees the frame.

use std::{
    fs::{self, File},
    io::{self, BufWriter, Write},
    mem::zeroed,
    net::{Ipv4Addr, UdpSocket},
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    thread::JoinHandle,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use crate::{
    error::{Doing, Result},
    sys::{NetNs, set_int_option},
    wires::{MARK_DAMAGED, MARK_DELAYED},
};

/// Nanosecond pcap, in the byte order of this machine.
const MAGIC: u32 = 0xa1b2_3c4d;
const LINKTYPE_ETHERNET: u32 = 1;
const FILE_HEADER: usize = 24;
const FRAME_HEADER: usize = 16;
/// Waiting frames that the kernel keeps for us while we write.
const SOCKET_BUFFER: i32 = 64 << 20;

/// Within this time the kernel has begun to note when frames arrive.
const TIMES_SOON: Duration = Duration::from_secs(5);

/// How to capture.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CaptureOptions {
    /// Bytes kept of each frame.
    pub snap_len: u32,
}

impl Default for CaptureOptions {
    /// Headers: 128 bytes of each frame.
    fn default() -> Self {
        CaptureOptions { snap_len: 128 }
    }
}

impl CaptureOptions {
    /// Whole frames, up to the 256 KiB that segmentation offload can make of one.
    pub fn whole() -> Self {
        CaptureOptions { snap_len: 256 << 10 }
    }
}

/// What a capture saw.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CaptureStats {
    /// Frames written.
    pub frames: u64,
    /// Frames that the kernel could not keep for us.
    pub missed: u64,
}

/// A running capture. It ends with [`stop`](Self::stop), when dropped, or with the lab.
#[derive(Debug)]
pub struct Capture {
    tap: Arc<Tap>,
    path: PathBuf,
}

impl Capture {
    pub(crate) fn start(
        ns: &NetNs,
        index: u32,
        dir: &Path,
        point: &str,
        options: CaptureOptions,
    ) -> Result<Capture> {
        let doing = || format!("capture at {point}");
        let path = free_path(dir, point);
        let open = || open_tap(index).and_then(|tap| wait_for_times_of_arrival().map(|()| tap));
        let socket = ns.run(|| open().doing(doing))?;
        let file = File::create(&path).doing(doing)?;
        let (stop, stopped) = nix::unistd::pipe2(nix::fcntl::OFlag::O_CLOEXEC).doing(doing)?;
        let mut out = BufWriter::with_capacity(256 << 10, file);
        out.write_all(&file_header(options)).and_then(|()| out.flush()).doing(doing)?;
        let worker = std::thread::Builder::new()
            .name("lab-capture".into())
            .spawn(move || record(&socket, &stop, out, options))
            .doing(doing)?;
        let state = Mutex::new(TapState {
            stop: Some(stopped),
            worker: Some(worker),
            stats: Ok(CaptureStats::default()),
        });
        Ok(Capture { tap: Arc::new(Tap(state)), path })
    }

    pub(crate) fn tap(&self) -> &Arc<Tap> {
        &self.tap
    }

    /// The pcap file. Frames are in it at the latest when nothing more arrives.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes everything that has arrived, and ends.
    ///
    /// # Errors
    /// Reading frames or writing the file failed.
    pub fn stop(self) -> Result<CaptureStats> {
        self.tap.stop();
        let mut state = self.tap.0.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::replace(&mut state.stats, Ok(CaptureStats::default()))
            .doing(|| format!("capture into {}", self.path.display()))
    }
}

impl Drop for Capture {
    fn drop(&mut self) {
        self.tap.stop();
    }
}

/// The thread behind a capture, known to the lab as well.
#[derive(Debug)]
pub(crate) struct Tap(Mutex<TapState>);

#[derive(Debug)]
struct TapState {
    /// Closing it stops the thread.
    stop: Option<OwnedFd>,
    worker: Option<JoinHandle<io::Result<CaptureStats>>>,
    stats: io::Result<CaptureStats>,
}

impl Tap {
    pub(crate) fn stop(&self) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.stop = None;
        if let Some(worker) = state.worker.take() {
            state.stats = worker.join().expect("the capture thread does not panic");
        }
    }
}

fn free_path(dir: &Path, point: &str) -> PathBuf {
    let path = |n: u32| match n {
        1 => dir.join(format!("{point}.pcap")),
        n => dir.join(format!("{point}.{n}.pcap")),
    };
    (1..).map(path).find(|p| !p.exists()).expect("a directory does not hold so many files")
}

/// A packet socket on one interface of the calling thread's namespace.
fn open_tap(index: u32) -> io::Result<OwnedFd> {
    let all = (libc::ETH_P_ALL as u16).to_be();
    // Protocol 0 receives nothing until bind, so no frame of another port slips in.
    // SAFETY: no pointers.
    let fd = unsafe { libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: `fd` is new and ours alone.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    set_int_option(fd.as_fd(), libc::SOL_SOCKET, libc::SO_RCVBUFFORCE, SOCKET_BUFFER)?;
    set_int_option(fd.as_fd(), libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)?;
    // SAFETY: plain data, zero is valid.
    let mut address: libc::sockaddr_ll = unsafe { zeroed() };
    address.sll_family = libc::AF_PACKET as u16;
    address.sll_protocol = all;
    address.sll_ifindex = index as i32;
    // Promiscuous, or a bridge shows only what is addressed to itself.
    let want = libc::packet_mreq {
        mr_ifindex: index as i32,
        mr_type: libc::PACKET_MR_PROMISC as u16,
        mr_alen: 0,
        mr_address: [0; 8],
    };
    // A frame that comes back to its cable from a detour was seen when it came first.
    let mark = (libc::SKF_AD_OFF + libc::SKF_AD_MARK) as u32;
    let mut program = [
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, (0, 0), mark),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, (2, 0), MARK_DAMAGED),
        step(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, (1, 0), MARK_DELAYED),
        step(libc::BPF_RET | libc::BPF_K, (0, 0), u32::MAX),
        step(libc::BPF_RET | libc::BPF_K, (0, 0), 0),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: all structs outlive the calls and the lengths are theirs.
    let refused = unsafe {
        libc::setsockopt(
            fd.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_ATTACH_FILTER,
            (&raw const filter).cast(),
            size_of_val(&filter) as u32,
        ) < 0
            || libc::bind(fd.as_raw_fd(), (&raw const address).cast(), size_of_val(&address) as u32)
                < 0
            || libc::setsockopt(
                fd.as_raw_fd(),
                libc::SOL_PACKET,
                libc::PACKET_ADD_MEMBERSHIP,
                (&raw const want).cast(),
                size_of_val(&want) as u32,
            ) < 0
    };
    if refused { Err(io::Error::last_os_error()) } else { Ok(fd) }
}

/// The kernel notes when frames arrive only while somebody wants to know, and begins with it some
/// time after it was asked; a frame that comes earlier gets the time at which it is read. Waits
/// until a datagram of our own has a time before it was read. The namespace's loopback must be up.
fn wait_for_times_of_arrival() -> io::Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
    socket.connect(socket.local_addr()?)?;
    set_int_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)?;
    let deadline = Instant::now() + TIMES_SOON;
    while Instant::now() < deadline {
        socket.send(b"?")?;
        let sent = SystemTime::now();
        // Not there yet: another one.
        if receive(socket.as_fd(), &mut [0])?.is_some_and(|arrived| arrived.time() <= sent) {
            return Ok(());
        }
    }
    Err(io::Error::new(io::ErrorKind::TimedOut, "the kernel does not say when frames arrive"))
}

/// One instruction of a socket filter; `jumps` if true and if false.
fn step(code: u32, jumps: (u8, u8), k: u32) -> libc::sock_filter {
    libc::sock_filter { code: code as u16, jt: jumps.0, jf: jumps.1, k }
}

/// The capture thread: drains the socket, flushes when it is empty, ends when `stop` is
/// closed at the other end and the socket is drained.
fn record(
    socket: &OwnedFd,
    stop: &OwnedFd,
    mut out: BufWriter<File>,
    options: CaptureOptions,
) -> io::Result<CaptureStats> {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
    let mut buffer = vec![0; options.snap_len as usize];
    let mut stats = CaptureStats::default();
    loop {
        let mut fds = [
            PollFd::new(socket.as_fd(), PollFlags::POLLIN),
            PollFd::new(stop.as_fd(), PollFlags::POLLIN),
        ];
        match poll(&mut fds, PollTimeout::NONE) {
            Err(nix::Error::EINTR) => continue,
            other => other?,
        };
        let last = fds[1].any() == Some(true);
        while let Some(arrived) = receive(socket.as_fd(), &mut buffer)? {
            out.write_all(&arrived.header())?;
            out.write_all(&buffer[..arrived.kept])?;
            stats.frames += 1;
        }
        out.flush()?;
        if last {
            stats.missed = missed(socket)?;
            return Ok(stats);
        }
    }
}

/// What has been read into a buffer.
struct Arrived {
    at: libc::timespec,
    /// Bytes in the buffer.
    kept: usize,
    /// Bytes on the wire.
    len: usize,
}

impl Arrived {
    fn time(&self) -> SystemTime {
        UNIX_EPOCH + Duration::new(self.at.tv_sec as u64, self.at.tv_nsec as u32)
    }

    /// The frame's pcap header.
    fn header(&self) -> [u8; FRAME_HEADER] {
        let mut head = [0; FRAME_HEADER];
        let words =
            [self.at.tv_sec as u32, self.at.tv_nsec as u32, self.kept as u32, self.len as u32];
        for (at, word) in words.into_iter().enumerate() {
            head[at * 4..][..4].copy_from_slice(&word.to_ne_bytes());
        }
        head
    }
}

/// The next frame, if one is waiting.
fn receive(socket: BorrowedFd<'_>, buffer: &mut [u8]) -> io::Result<Option<Arrived>> {
    let mut control = [0u64; 8]; // aligned as cmsghdr wants
    let mut part = libc::iovec { iov_base: buffer.as_mut_ptr().cast(), iov_len: buffer.len() };
    // SAFETY: plain data, zero is valid.
    let (mut from, mut message): (libc::sockaddr_ll, libc::msghdr) = unsafe { zeroed() };
    message.msg_name = (&raw mut from).cast();
    message.msg_namelen = size_of_val(&from) as libc::socklen_t;
    message.msg_iov = &mut part;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of_val(&control) as _;
    let flags = libc::MSG_DONTWAIT | libc::MSG_TRUNC; // TRUNC: the real length is returned
    // SAFETY: every pointer in `message` is to a live buffer of the length said.
    let len = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, flags) };
    if len < 0 {
        let error = io::Error::last_os_error();
        return match error.raw_os_error() {
            // An interface that goes away or down is no reason to end: it may come back.
            Some(libc::EAGAIN | libc::EINTR | libc::ENETDOWN) => Ok(None),
            _ => Err(error),
        };
    }
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the kernel has filled `control` and set its length; the macros stay inside.
    unsafe {
        let mut c = libc::CMSG_FIRSTHDR(&message);
        while !c.is_null() {
            if (*c).cmsg_level == libc::SOL_SOCKET && (*c).cmsg_type == libc::SCM_TIMESTAMPNS {
                time = libc::CMSG_DATA(c).cast::<libc::timespec>().read_unaligned();
            }
            c = libc::CMSG_NXTHDR(&message, c);
        }
    }
    let len = len as usize;
    let kept = len.min(buffer.len());
    // The bytes are shared with the frame, and a host that forwards it may have written the next
    // hop's addresses over it. Its sender was noted when it came by.
    if let (6, Some(sender)) = (from.sll_halen, buffer[..kept].get_mut(6..12)) {
        sender.copy_from_slice(&from.sll_addr[..6]);
    }
    Ok(Some(Arrived { at: time, kept, len }))
}

fn missed(socket: &OwnedFd) -> io::Result<u64> {
    let mut stats = [0u32; 2]; // struct tpacket_stats: packets, drops
    let mut len = size_of_val(&stats) as libc::socklen_t;
    // SAFETY: buffer and length are of the same array.
    let rc = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_PACKET,
            libc::PACKET_STATISTICS,
            stats.as_mut_ptr().cast(),
            &mut len,
        )
    };
    if rc < 0 { Err(io::Error::last_os_error()) } else { Ok(stats[1].into()) }
}

fn file_header(options: CaptureOptions) -> [u8; FILE_HEADER] {
    let mut h = [0; FILE_HEADER];
    h[..4].copy_from_slice(&MAGIC.to_ne_bytes());
    h[4..6].copy_from_slice(&2u16.to_ne_bytes());
    h[6..8].copy_from_slice(&4u16.to_ne_bytes());
    h[16..20].copy_from_slice(&options.snap_len.to_ne_bytes());
    h[20..24].copy_from_slice(&LINKTYPE_ETHERNET.to_ne_bytes());
    h
}

/// A captured frame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// When the kernel first saw it.
    pub at: SystemTime,
    /// Its length on the wire, bytes; an offloaded segment counts as one frame.
    pub len: u32,
    /// The bytes that were kept, from the Ethernet header on.
    pub bytes: Vec<u8>,
}

/// Reads a capture back, also one that is still being written.
///
/// # Errors
/// The file cannot be read or is not a capture of this machine.
pub fn read_pcap(path: &Path) -> Result<Vec<Frame>> {
    let doing = || format!("read the capture {}", path.display());
    parse_pcap(&fs::read(path).doing(doing)?).doing(doing)
}

fn parse_pcap(bytes: &[u8]) -> io::Result<Vec<Frame>> {
    let word = |b: &[u8]| u32::from_ne_bytes([b[0], b[1], b[2], b[3]]);
    let Some((head, mut rest)) =
        bytes.split_at_checked(FILE_HEADER).filter(|(h, _)| word(h) == MAGIC)
    else {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "not a nanosecond pcap file"));
    };
    debug_assert_eq!(head.len(), FILE_HEADER);
    let mut frames = Vec::new();
    while let Some((head, body)) = rest.split_at_checked(FRAME_HEADER) {
        let since =
            Duration::from_secs(word(head).into()) + Duration::from_nanos(word(&head[4..]).into());
        // The last frame may still be on its way to the file.
        let Some((kept, next)) = body.split_at_checked(word(&head[8..]) as usize) else { break };
        frames.push(Frame { at: UNIX_EPOCH + since, len: word(&head[12..]), bytes: kept.to_vec() });
        rest = next;
    }
    Ok(frames)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each time it begins anew, since nobody else asks for times in between.
    #[test]
    fn a_frame_has_the_time_at_which_it_came() {
        for _ in 0..20 {
            let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            set_int_option(socket.as_fd(), libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1).unwrap();
            wait_for_times_of_arrival().unwrap();
            socket.send_to(b"!", socket.local_addr().unwrap()).unwrap();
            let sent = SystemTime::now();
            socket.peek(&mut [0]).unwrap();
            let arrived = receive(socket.as_fd(), &mut [0]).unwrap().expect("it was there");
            assert!(arrived.time() <= sent);
        }
    }

    #[test]
    fn a_capture_reads_back_and_a_torn_end_is_left_out() {
        let mut file = file_header(CaptureOptions::default()).to_vec();
        for (sec, len) in [(5u32, 3u32), (6, 60)] {
            for word in [sec, 7, 3, len] {
                file.extend_from_slice(&word.to_ne_bytes());
            }
            file.extend_from_slice(b"abc");
        }
        let frames = parse_pcap(&file).unwrap();
        assert_eq!(frames.len(), 2);
        assert_eq!(frames[1].at, UNIX_EPOCH + Duration::new(6, 7));
        assert_eq!((frames[1].len, frames[1].bytes.as_slice()), (60, &b"abc"[..]));
        for torn in 1..19 {
            assert_eq!(parse_pcap(&file[..file.len() - torn]).unwrap(), frames[..1]);
        }
        assert!(parse_pcap(b"").is_err());
        assert!(parse_pcap(&[0; 64]).is_err());
    }
}
