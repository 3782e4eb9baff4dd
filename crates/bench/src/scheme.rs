//! The schemes that are measured, and what each of them promises.

use serde::{Deserialize, Serialize};

use crate::record::Bar;

/// What is made stable, when output is released, how the backup's server gets to its state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scheme {
    /// Client bytes; at once; it reads the requests again.
    Track,
    /// Client bytes and whole replies; when a reply is held by two nodes; it begins at the first
    /// request without a reply.
    Message,
}

/// A scheme's bars. Ratios are protected ÷ unprotected.
#[derive(Clone, Copy, Debug)]
pub struct Bars {
    /// Bulk out at 1 Gbit/s.
    pub bulk_out: Bar,
    /// Bulk in at 100:100 Mbit/s.
    pub bulk_in_100: Bar,
    /// Bulk in at 1000:1000 Mbit/s.
    pub bulk_in_1000: Bar,
    /// Median time of a small request of one client.
    pub small_p50: Bar,
    /// Throughput of small requests of fifty clients.
    pub small_50: Bar,
    /// Processor time of the primary per request.
    pub primary_cpu: Bar,
    /// Gap of a download at host death, beyond detection, ms.
    pub gap_ms: Bar,
    /// Memory of each node per idle flow, bytes.
    pub idle_flow_bytes: Bar,
    /// Takeover of [`Bars::flows_at_once`] flows and of fewer, beyond detection, ms.
    pub takeover_ms: Bar,
    /// So many flows.
    pub flows_at_once: usize,
    /// From promotion to the first new byte of a download that is nearly at its end, ms.
    pub catch_up_ms: Bar,
}

impl Scheme {
    /// All of them, in the order of the report.
    pub const ALL: [Scheme; 2] = [Scheme::Track, Scheme::Message];

    /// As configurations spell it.
    pub fn name(self) -> &'static str {
        match self {
            Scheme::Track => "track",
            Scheme::Message => "message",
        }
    }

    /// What the names of its rows begin with.
    pub fn prefix(self) -> &'static str {
        match self {
            Scheme::Track => "",
            Scheme::Message => "message-",
        }
    }

    /// What it should reach.
    pub fn bars(self) -> Bars {
        match self {
            Scheme::Track => Bars {
                bulk_out: Bar::AtLeast(0.99),
                bulk_in_100: Bar::AtLeast(0.99),
                bulk_in_1000: Bar::AtLeast(0.97),
                small_p50: Bar::AtMost(1.10),
                small_50: Bar::AtLeast(0.95),
                primary_cpu: Bar::AtMost(1.03),
                gap_ms: Bar::AtMost(20.0),
                idle_flow_bytes: Bar::AtMost(512.0),
                takeover_ms: Bar::AtMost(500.0),
                flows_at_once: 10_000,
                catch_up_ms: Bar::AtMost(150.0),
            },
            Scheme::Message => Bars {
                bulk_out: Bar::AtLeast(0.97),
                bulk_in_100: Bar::AtLeast(0.99),
                bulk_in_1000: Bar::AtLeast(0.97),
                small_p50: Bar::AtMost(1.5),
                small_50: Bar::AtLeast(0.70),
                primary_cpu: Bar::AtMost(1.3),
                gap_ms: Bar::AtMost(20.0),
                idle_flow_bytes: Bar::AtMost(1024.0),
                takeover_ms: Bar::AtMost(500.0),
                flows_at_once: 10_000,
                // What is made again is what `track` makes.
                catch_up_ms: Bar::Beside,
            },
        }
    }
}
