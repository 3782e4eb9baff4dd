//! An external arbiter that keeps its contract to the letter and helps no further: see
//! `cluster::Claim`.

use std::collections::BTreeMap;

use cluster::{Claim, Epoch, Verdict};

/// The arbiter's memory.
#[derive(Debug, Default)]
pub struct Arbiter {
    granted: BTreeMap<Epoch, usize>,
}

impl Arbiter {
    /// To whom `epoch` was granted.
    pub fn owner(&self, epoch: Epoch) -> Option<usize> {
        self.granted.get(&epoch).copied()
    }

    /// Answers node `who`. `peer_down`: the peer can neither decide nor emit.
    pub fn answer(&mut self, who: usize, epoch: Epoch, claim: Claim, peer_down: bool) -> Verdict {
        match claim {
            Claim::Lease => {
                if *self.granted.entry(epoch).or_insert(who) == who {
                    Verdict::Granted { epoch }
                } else {
                    Verdict::Refused
                }
            }
            Claim::Alone if peer_down => {
                let above = self.granted.last_key_value().map_or(Epoch(0), |(&last, _)| last);
                let epoch = epoch.max(above.plus(1));
                self.granted.insert(epoch, who);
                Verdict::Granted { epoch }
            }
            Claim::Alone => Verdict::Refused,
        }
    }
}
