//! The few rtnetlink requests a lab needs.
//!
//! Calling `ip` and `tc` would cost some thirty processes per lab. The requests are
//! few and fixed, so they are written here by hand: one message, one acknowledgement,
//! and the kernel's own sentence (NLMSGERR_ATTR_MSG) when it refuses.
//!
//! A [`Socket`] belongs to the network namespace of the thread that opened it, and
//! keeps that namespace alive: it must not outlive the set-up it serves.

use std::{
    io,
    net::IpAddr,
    os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd},
};

use libc::c_int;

use crate::sys::set_int_option;

const VETH_INFO_PEER: u16 = 1;
const TC_H_ROOT: u32 = 0xffff_ffff;
const TCA_TBF_PARMS: u16 = 1;
const TCA_TBF_RATE64: u16 = 4;
const TCA_TBF_BURST: u16 = 6;
const TC_LINKLAYER_ETHERNET: u8 = 1;
const NLMSGERR_ATTR_MSG: u16 = 1;
const IFA_F_NODAD: u8 = 0x02;

/// A request under construction: header, fixed part, attributes.
struct Request {
    bytes: Vec<u8>,
}

impl Request {
    /// `fixed` is the message family's own header (`ifinfomsg`, …).
    fn new(kind: u16, flags: c_int, fixed: &[u8]) -> Request {
        let flags = (libc::NLM_F_REQUEST | libc::NLM_F_ACK | flags) as u16;
        let mut bytes = Vec::with_capacity(256);
        bytes.extend_from_slice(&0u32.to_ne_bytes()); // length, set by `finish`
        bytes.extend_from_slice(&kind.to_ne_bytes());
        bytes.extend_from_slice(&flags.to_ne_bytes());
        bytes.extend_from_slice(&[0; 8]); // sequence and port: one request at a time
        bytes.extend_from_slice(fixed);
        Request { bytes }.aligned()
    }

    fn aligned(mut self) -> Self {
        self.bytes.resize(self.bytes.len().next_multiple_of(4), 0);
        self
    }

    fn attr(self, kind: u16, value: &[u8]) -> Self {
        self.nest(kind, |mut r| {
            r.bytes.extend_from_slice(value);
            r
        })
    }

    fn text(self, kind: u16, value: &str) -> Self {
        self.nest(kind, |mut r| {
            r.bytes.extend_from_slice(value.as_bytes());
            r.bytes.push(0);
            r
        })
    }

    fn nest(mut self, kind: u16, fill: impl FnOnce(Self) -> Self) -> Self {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 2]);
        self.bytes.extend_from_slice(&kind.to_ne_bytes());
        let mut filled = fill(self);
        let len = u16::try_from(filled.bytes.len() - start).expect("our requests are short");
        filled.bytes[start..start + 2].copy_from_slice(&len.to_ne_bytes());
        filled.aligned()
    }

    fn finish(mut self) -> Vec<u8> {
        let len = u32::try_from(self.bytes.len()).expect("our requests are short");
        self.bytes[..4].copy_from_slice(&len.to_ne_bytes());
        self.bytes
    }
}

/// `struct ifinfomsg`.
fn ifinfo(index: u32, flags: c_int, change: c_int) -> [u8; 16] {
    let mut b = [0; 16];
    b[4..8].copy_from_slice(&index.to_ne_bytes());
    b[8..12].copy_from_slice(&flags.to_ne_bytes());
    b[12..16].copy_from_slice(&change.to_ne_bytes());
    b
}

/// A veth pair: one end in the caller's namespace, enslaved to a bridge.
pub(crate) struct Veth<'a> {
    /// Name and index of the end that stays.
    pub(crate) port: &'a str,
    pub(crate) port_index: u32,
    /// Index of the bridge that the staying end joins.
    pub(crate) bridge: u32,
    /// Name, index, MAC and namespace of the end that goes to the host.
    pub(crate) peer: &'a str,
    pub(crate) peer_index: u32,
    pub(crate) peer_mac: [u8; 6],
    pub(crate) peer_ns: BorrowedFd<'a>,
    /// MTU of both ends, bytes.
    pub(crate) mtu: u32,
}

/// An rtnetlink socket in one network namespace.
pub(crate) struct Socket(OwnedFd);

impl Socket {
    /// Opens a socket in the calling thread's network namespace.
    pub(crate) fn open() -> io::Result<Socket> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        // SAFETY: no pointers.
        let fd = unsafe { libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: `fd` is new and ours alone.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        for option in [libc::NETLINK_EXT_ACK, libc::NETLINK_CAP_ACK] {
            set_int_option(fd.as_fd(), libc::SOL_NETLINK, option, 1)?;
        }
        Ok(Socket(fd))
    }

    /// Creates a bridge that never learns of multicast groups and runs no STP.
    pub(crate) fn add_bridge(&self, name: &str, index: u32) -> io::Result<()> {
        let create = libc::NLM_F_CREATE | libc::NLM_F_EXCL;
        self.call(
            Request::new(libc::RTM_NEWLINK, create, &ifinfo(index, 0, 0))
                .text(libc::IFLA_IFNAME, name)
                .nest(libc::IFLA_LINKINFO, |r| {
                    r.text(libc::IFLA_INFO_KIND, "bridge").nest(libc::IFLA_INFO_DATA, |r| {
                        const IFLA_BR_MCAST_SNOOPING: u16 = 23;
                        r.attr(IFLA_BR_MCAST_SNOOPING, &[0])
                    })
                }),
        )
    }

    /// Creates a veth pair.
    pub(crate) fn add_veth(&self, veth: &Veth<'_>) -> io::Result<()> {
        let create = libc::NLM_F_CREATE | libc::NLM_F_EXCL;
        let mtu = veth.mtu.to_ne_bytes();
        self.call(
            Request::new(libc::RTM_NEWLINK, create, &ifinfo(veth.port_index, 0, 0))
                .text(libc::IFLA_IFNAME, veth.port)
                .attr(libc::IFLA_MTU, &mtu)
                .attr(libc::IFLA_MASTER, &veth.bridge.to_ne_bytes())
                .nest(libc::IFLA_LINKINFO, |r| {
                    r.text(libc::IFLA_INFO_KIND, "veth").nest(libc::IFLA_INFO_DATA, |r| {
                        r.nest(VETH_INFO_PEER, |mut r| {
                            r.bytes.extend_from_slice(&ifinfo(veth.peer_index, 0, 0));
                            let ns = veth.peer_ns.as_raw_fd();
                            r.text(libc::IFLA_IFNAME, veth.peer)
                                .attr(libc::IFLA_MTU, &mtu)
                                .attr(libc::IFLA_ADDRESS, &veth.peer_mac)
                                .attr(libc::IFLA_NET_NS_FD, &ns.to_ne_bytes())
                        })
                    })
                }),
        )
    }

    /// Takes an interface up or down.
    pub(crate) fn set_up(&self, index: u32, up: bool) -> io::Result<()> {
        let flags = if up { libc::IFF_UP } else { 0 };
        self.call(Request::new(libc::RTM_NEWLINK, 0, &ifinfo(index, flags, libc::IFF_UP)))
    }

    /// Sets how many frames may wait in front of an interface.
    pub(crate) fn set_queue_len(&self, index: u32, frames: u32) -> io::Result<()> {
        self.call(
            Request::new(libc::RTM_NEWLINK, 0, &ifinfo(index, 0, 0))
                .attr(libc::IFLA_TXQLEN, &frames.to_ne_bytes()),
        )
    }

    /// Removes an interface; one that is already gone is fine.
    pub(crate) fn delete(&self, index: u32) -> io::Result<()> {
        match self.ask(Request::new(libc::RTM_DELLINK, 0, &ifinfo(index, 0, 0))) {
            Err(Refused { errno: libc::ENODEV, .. }) => Ok(()),
            other => Ok(other?),
        }
    }

    /// Adds an address, usable at once (no duplicate address detection).
    pub(crate) fn add_address(&self, index: u32, ip: IpAddr, prefix: u8) -> io::Result<()> {
        let (family, bytes) = match ip {
            IpAddr::V4(ip) => (libc::AF_INET, ip.octets().to_vec()),
            IpAddr::V6(ip) => (libc::AF_INET6, ip.octets().to_vec()),
        };
        let nodad = if ip.is_ipv6() { IFA_F_NODAD } else { 0 };
        // struct ifaddrmsg
        let mut fixed = [0; 8];
        (fixed[0], fixed[1], fixed[2]) = (family as u8, prefix, nodad);
        fixed[4..8].copy_from_slice(&index.to_ne_bytes());
        let create = libc::NLM_F_CREATE | libc::NLM_F_EXCL;
        self.call(
            Request::new(libc::RTM_NEWADDR, create, &fixed)
                .attr(libc::IFA_LOCAL, &bytes)
                .attr(libc::IFA_ADDRESS, &bytes),
        )
    }

    /// Shapes what leaves an interface to `rate_bytes` per second with a token bucket of
    /// `burst` bytes in front of a queue of `limit` bytes.
    pub(crate) fn set_tbf(
        &self,
        index: u32,
        rate_bytes: u64,
        burst: u32,
        limit: u32,
    ) -> io::Result<()> {
        // struct tc_tbf_qopt: rate and peakrate (tc_ratespec, 12 bytes each), limit, buffer, mtu
        let mut parms = [0; 36];
        parms[1] = TC_LINKLAYER_ETHERNET;
        let rate32 = u32::try_from(rate_bytes).unwrap_or(u32::MAX);
        parms[8..12].copy_from_slice(&rate32.to_ne_bytes());
        parms[24..28].copy_from_slice(&limit.to_ne_bytes());
        let replace = libc::NLM_F_CREATE | libc::NLM_F_REPLACE;
        self.call(
            Request::new(libc::RTM_NEWQDISC, replace, &Self::root_qdisc(index))
                .text(libc::TCA_KIND, "tbf")
                .nest(libc::TCA_OPTIONS, |r| {
                    let r = r.attr(TCA_TBF_PARMS, &parms).attr(TCA_TBF_BURST, &burst.to_ne_bytes());
                    if rate_bytes > u64::from(u32::MAX) {
                        r.attr(TCA_TBF_RATE64, &rate_bytes.to_ne_bytes())
                    } else {
                        r
                    }
                }),
        )
    }

    /// Removes the shaping; an interface that has none is fine.
    pub(crate) fn clear_qdisc(&self, index: u32) -> io::Result<()> {
        match self.ask(Request::new(libc::RTM_DELQDISC, 0, &Self::root_qdisc(index))) {
            // The kernel's own default qdisc cannot be deleted: there was no shaping.
            Err(Refused { errno: libc::ENOENT | libc::EINVAL, .. }) => Ok(()),
            other => Ok(other?),
        }
    }

    /// `struct tcmsg` of an interface's root qdisc.
    fn root_qdisc(index: u32) -> [u8; 20] {
        let mut fixed = [0; 20];
        fixed[4..8].copy_from_slice(&index.to_ne_bytes());
        fixed[12..16].copy_from_slice(&TC_H_ROOT.to_ne_bytes());
        fixed
    }

    fn call(&self, request: Request) -> io::Result<()> {
        Ok(self.ask(request)?)
    }

    fn ask(&self, request: Request) -> Result<(), Refused> {
        let bytes = request.finish();
        // SAFETY: pointer and length describe `bytes`.
        let sent = unsafe { libc::send(self.0.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0) };
        if sent < 0 {
            return Err(Refused::errno());
        }
        let mut answer = [0u8; 4096];
        // SAFETY: pointer and length describe `answer`.
        let got =
            unsafe { libc::recv(self.0.as_raw_fd(), answer.as_mut_ptr().cast(), answer.len(), 0) };
        if got < 0 {
            return Err(Refused::errno());
        }
        verdict(&answer[..got as usize])
    }
}

/// The kernel's no.
#[derive(Debug, PartialEq)]
struct Refused {
    errno: i32,
    said: Option<String>,
}

impl Refused {
    fn errno() -> Refused {
        Refused { errno: io::Error::last_os_error().raw_os_error().unwrap_or(0), said: None }
    }
}

impl From<Refused> for io::Error {
    fn from(r: Refused) -> io::Error {
        let error = io::Error::from_raw_os_error(r.errno);
        match r.said {
            Some(said) => io::Error::new(error.kind(), format!("{error}: {said}")),
            None => error,
        }
    }
}

/// What an acknowledgement says: nlmsghdr (16 bytes), errno (4), the request's header
/// (16), then attributes.
fn verdict(answer: &[u8]) -> Result<(), Refused> {
    let garbled = Refused { errno: libc::EBADMSG, said: Some("odd netlink answer".into()) };
    let (Some(kind), Some(code)) = (answer.get(4..6), answer.get(16..20)) else {
        return Err(garbled);
    };
    if i32::from(u16::from_ne_bytes([kind[0], kind[1]])) != libc::NLMSG_ERROR {
        return Err(garbled);
    }
    match i32::from_ne_bytes([code[0], code[1], code[2], code[3]]) {
        0 => Ok(()),
        code => Err(Refused {
            errno: code.wrapping_neg(),
            said: message(answer.get(36..).unwrap_or_default()),
        }),
    }
}

/// Finds the kernel's sentence among the attributes of an acknowledgement.
fn message(mut attrs: &[u8]) -> Option<String> {
    while let [l0, l1, k0, k1, rest @ ..] = attrs {
        let len = usize::from(u16::from_ne_bytes([*l0, *l1])).checked_sub(4)?;
        let value = rest.get(..len)?;
        if u16::from_ne_bytes([*k0, *k1]) == NLMSGERR_ATTR_MSG {
            return Some(String::from_utf8_lossy(value).trim_end_matches('\0').to_owned());
        }
        attrs = rest.get(len.next_multiple_of(4)..)?;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nested_attributes_carry_their_lengths_and_padding() {
        let bytes = Request::new(1, 0, &[]).nest(7, |r| r.text(3, "abcd").attr(4, &[9])).finish();
        assert_eq!(u32::from_ne_bytes(bytes[..4].try_into().unwrap()), 16 + 24);
        assert_eq!(bytes[16..20], [[24, 0], [7, 0]].concat());
        assert_eq!(bytes[20..24], [[9, 0], [3, 0]].concat());
        assert_eq!(&bytes[24..32], b"abcd\0\0\0\0");
        assert_eq!(bytes[32..40], [5, 0, 4, 0, 9, 0, 0, 0]);
    }

    #[test]
    fn refusals_keep_errno_and_sentence() {
        let mut answer = vec![0; 36];
        answer[4..6].copy_from_slice(&(libc::NLMSG_ERROR as u16).to_ne_bytes());
        assert_eq!(verdict(&answer), Ok(()));
        answer[16..20].copy_from_slice(&(-libc::EBUSY).to_ne_bytes());
        answer.extend_from_slice(&[7, 0, 1, 0, b'n', b'o', 0, 0]);
        let refused =
            |said: Option<&str>| Err(Refused { errno: libc::EBUSY, said: said.map(str::to_owned) });
        assert_eq!(verdict(&answer), refused(Some("no")));
        assert!(verdict(&answer[..10]).is_err());
        // A lying attribute length loses the sentence, nothing else.
        answer[36] = 200;
        assert_eq!(verdict(&answer), refused(None));
    }
}
