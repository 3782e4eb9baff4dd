//! Children that are open and may still have output to swallow. Two things are owed to them: out
//! of the socket map when they are done, since every write through it costs; and, on kernels that
//! need it, a ring while they are in it.

use std::time::{Duration, Instant};

use datapath::{FlowKey, FlowTable, Ringer};

/// How often they are looked at.
const RETIRE: Duration = Duration::from_millis(50);

/// How often the [`Ringer`] rings: each time a server may read as much as its buffer holds. At most
/// an eighth of the time is spent on it.
const RING: Duration = Duration::from_millis(1);

/// And how often once no child has been opened for [`LATE`]: its server is slow, or will never say
/// all that it said before.
const RING_LATE: Duration = Duration::from_millis(20);
const LATE: Duration = Duration::from_secs(1);

pub(crate) struct Swallowers {
    open: Vec<FlowKey>,
    retire_at: Instant,
    ringer: Option<Ringer>,
    ring_at: Instant,
    /// When the last one was opened.
    added_at: Instant,
}

impl Swallowers {
    pub fn new(ringer: Option<Ringer>, now: Instant) -> Self {
        Self { open: Vec::new(), retire_at: now, ringer, ring_at: now, added_at: now }
    }

    /// A child that has been opened.
    pub fn add(&mut self, key: FlowKey, now: Instant) {
        self.added_at = now;
        self.open.push(key);
    }

    pub fn clear(&mut self) {
        self.open.clear();
    }

    /// Does what is due. `adopting`: there are children that are not open yet, but may read already.
    pub fn advance(&mut self, table: &FlowTable, adopting: bool, now: Instant) {
        if !self.open.is_empty() && now >= self.retire_at {
            self.retire_at = now + RETIRE;
            self.retire(table);
            // Who was told of no bytes by a socket that has just left the map is told of them now.
            self.ring(now);
        } else if (adopting || !self.open.is_empty()) && now >= self.ring_at {
            self.ring(now);
        }
    }

    /// When something is due for those that are open.
    pub fn due(&self) -> Option<Instant> {
        let ring_at = self.ringer.is_some().then_some(self.ring_at);
        let due = ring_at.map_or(self.retire_at, |at| at.min(self.retire_at));
        (!self.open.is_empty()).then_some(due)
    }

    fn retire(&mut self, table: &FlowTable) {
        self.open.retain(|key| match table.get(key) {
            Some(flow) if flow.swallow_left() > 0 => true,
            Some(_) => {
                table.stop_swallowing(key);
                false
            }
            None => false,
        });
    }

    /// Servers that were told of no bytes where there are some look again.
    fn ring(&mut self, now: Instant) {
        let Some(ringer) = &self.ringer else { return };
        let begin = Instant::now();
        if let Err(error) = ringer.ring() {
            tracing::warn!(%error, "cannot ring at servers with unread requests: they may hang");
        }
        let pause = if now.duration_since(self.added_at) < LATE { RING } else { RING_LATE };
        self.ring_at = now + pause.max(begin.elapsed() * 8);
    }
}
