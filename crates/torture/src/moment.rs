//! When something fails: after so many bytes, or at a *cut point*, an instant between two steps
//! of the data path that a frame on a wire gives away.
//!
//! A host dies at a cut point by the wire's own hand, before the next frame can pass. Other
//! faults come as soon as the wire has reported the frame, which is a little later.

use std::fmt;

use lab::{FrameFilter, Transport, Way};
use serde::Serialize;

/// A frame that gives an instant away.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Point {
    /// A client's data is about to reach the backup.
    BeforeAppend,
    /// It was logged and is relayed to the primary.
    AfterAppend,
    /// A reply leaves the primary.
    BeforeRelease,
    /// A SYN-ACK goes to the backup, to be passed on.
    SynAckBounce,
    /// A FIN of the server goes to the backup, to be passed on.
    FinBounce,
}

impl Point {
    /// All of them.
    pub const ALL: [Point; 5] = [
        Point::BeforeAppend,
        Point::AfterAppend,
        Point::BeforeRelease,
        Point::SynAckBounce,
        Point::FinBounce,
    ];

    /// The cable, given the nodes' names, and the way of it.
    pub fn wire(self, primary: &str, backup: &str) -> (String, Way) {
        match self {
            Point::BeforeAppend => (format!("{backup}.svc"), Way::ToHost),
            Point::AfterAppend => (format!("{backup}.clu"), Way::FromHost),
            Point::BeforeRelease => (format!("{primary}.svc"), Way::FromHost),
            Point::SynAckBounce | Point::FinBounce => (format!("{primary}.clu"), Way::FromHost),
        }
    }

    /// The frames, of a service at `port`.
    pub fn frame(self, port: u16) -> FrameFilter {
        let tcp = FrameFilter { transport: Some(Transport::Tcp), ..FrameFilter::default() };
        let (to, from) = (
            FrameFilter { destination: Some(port), ..tcp },
            FrameFilter { source: Some(port), ..tcp },
        );
        match self {
            Point::BeforeAppend | Point::AfterAppend => FrameFilter { payload: Some(true), ..to },
            Point::BeforeRelease => FrameFilter { payload: Some(true), ..from },
            Point::SynAckBounce => {
                FrameFilter { flags: FrameFilter::SYN | FrameFilter::ACK, ..from }
            }
            Point::FinBounce => FrameFilter { flags: FrameFilter::FIN, ..from },
        }
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Point::BeforeAppend => "before-append",
            Point::AfterAppend => "after-append",
            Point::BeforeRelease => "before-release",
            Point::SynAckBounce => "syn-ack-bounce",
            Point::FinBounce => "fin-bounce",
        })
    }
}

/// When.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Moment {
    /// So many thousandths of all bytes have arrived; of a shop's replies.
    Bytes(u64),
    /// The `nth` such frame passes; the frame itself may be lost.
    At {
        /// Which frame.
        point: Point,
        /// 1 for the first.
        nth: u32,
        /// Whether it is lost.
        swallow: bool,
    },
    /// The backup says that it takes over.
    DuringReplay,
    /// The first frame of the new primary goes to a client.
    DuringPromotion,
}

impl Moment {
    /// Its name in tables: bytes are one.
    pub fn name(&self) -> String {
        match self {
            Moment::Bytes(_) => "random".to_owned(),
            Moment::At { point, .. } => point.to_string(),
            Moment::DuringReplay => "during-replay".to_owned(),
            Moment::DuringPromotion => "during-promotion".to_owned(),
        }
    }
}

impl fmt::Display for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Moment::Bytes(mille) => write!(f, "after {:.1}% of the bytes", *mille as f64 / 10.0),
            Moment::At { point, nth, swallow } => {
                write!(f, "{point}, frame {nth}{}", if *swallow { ", which is lost" } else { "" })
            }
            _ => f.write_str(&self.name()),
        }
    }
}

/// The first frame of a new primary: no control segment, which a backup passes on as well.
pub(crate) fn first_output(port: u16) -> FrameFilter {
    FrameFilter {
        transport: Some(Transport::Tcp),
        source: Some(port),
        without: FrameFilter::SYN | FrameFilter::FIN | FrameFilter::RST,
        ..FrameFilter::default()
    }
}
