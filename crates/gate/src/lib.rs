//! The gate `held`: what a server writes is captured and leaves when the daemon says so.
//!
//! The obvious way, to divert a server's writes and send them later in its place, fails at the end
//! of a stream: `shutdown` and `close` act on the socket at once, and what is still held can no
//! longer be written to it. It also has no back-pressure. So nothing is diverted. TCP gets every
//! write at once and keeps it in its own send queue; the data path *copies* writes to the daemon
//! ([`datapath::Output`]), and *refuses* the segments that TCP builds from bytes that may not leave
//! yet. A refused segment counts as never sent. Order, FIN behind the last byte, blocking writers,
//! death of the process: all is what TCP does anyway with a connection that cannot send.
//!
//! Each flow has a *released edge*: the outstream's first sequence number that may not leave. A FIN
//! occupies the number behind the last byte. [`Orders::release`] moves the edge and makes TCP try
//! again at once. Which edge, and when, is not decided here.
//!
//! A segment that lies across the edge is refused whole. Bytes in front of an edge that is not the
//! end of what has been written may therefore leave only with what is behind them.
//!
//! The programs are the data path's; this crate is the daemon's side of them.

use datapath::{FlowKey, Order};
use hostnet::{Tun, TunError};

/// Who releases. An order is carried out on the flow's primary: here if that is this node's role,
/// else by the peer, to which the data path sends it as a frame over the link that client segments
/// are relayed on. Nobody is woken for it there.
///
/// One order is one system call of a few microseconds. Carried out here, it has run the socket's
/// transmission when it returns. Sent to the peer, it is as reliable as a frame: one that is lost is
/// made good by a later edge, or by the same one again.
#[derive(Debug)]
pub struct Orders {
    device: Tun,
}

impl Orders {
    /// `device` is the one that the data path's adoption program is attached to.
    pub fn new(device: Tun) -> Self {
        Self { device }
    }

    /// Lets the flow's output in front of `edge` leave: a sequence number of the outstream, modulo
    /// 2^32; one behind the FIN's to let that out as well. An edge that lies behind the released
    /// one changes nothing, and a flow that is gone is counted
    /// ([`OrdersStray`](datapath::Counter::OrdersStray)): connections end at any time.
    ///
    /// Nothing leaves by it that has not been captured: an edge beyond that is brought back to it. What
    /// an [`Output::Bytes`](datapath::Output::Bytes) record says anew, from its `seq` on, is not
    /// released any more, and must be released again; so must the FIN behind it.
    pub fn release(&self, flow: &FlowKey, edge: u32) -> Result<(), TunError> {
        self.give(flow, Order::Release { edge })
    }

    /// Lets the flow's output in front of `edge` leave also where it has not been written yet: it does
    /// not matter what it will be.
    pub fn release_ahead(&self, flow: &FlowKey, edge: u32) -> Result<(), TunError> {
        self.give(flow, Order::Ahead { edge })
    }

    /// Opens the flow's gate for good: everything leaves, nothing more is captured.
    pub fn open(&self, flow: &FlowKey) -> Result<(), TunError> {
        self.give(flow, Order::Open)
    }

    fn give(&self, flow: &FlowKey, order: Order) -> Result<(), TunError> {
        self.device.write_packet(&order.packet(flow))
    }
}
