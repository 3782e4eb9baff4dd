//! A 48-bit Ethernet address, printed the way `ip link` prints it.

use std::fmt;

/// An Ethernet address, in wire order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Mac(pub [u8; 6]);

impl Mac {
    /// Every station on the link.
    pub const BROADCAST: Mac = Mac([0xff; 6]);
    /// The address that belongs to nobody; ARP probes carry it as their unknown target.
    pub const ZERO: Mac = Mac([0; 6]);

    /// Reads exactly six bytes; `None` for any other length.
    pub fn from_slice(bytes: &[u8]) -> Option<Mac> {
        bytes.try_into().ok().map(Mac)
    }
}

impl fmt::Display for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, e, g] = self.0;
        write!(f, "{a:02x}:{b:02x}:{c:02x}:{d:02x}:{e:02x}:{g:02x}")
    }
}

impl fmt::Debug for Mac {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
