//! Cables that are bad without being cut: loss, duplication, reordering, delay, corruption.
//!
//! Every way of every cable has its own settings, dice and counters in the wire's table.
//! What is set holds across kill and boot of the host, as shaping does: the cable is not
//! the host. Frames pass the faults before the shaping, which sees what is left of them.

use std::{
    collections::BTreeMap,
    fmt,
    sync::atomic::Ordering::{Relaxed, SeqCst},
    time::Duration,
};

use serde::{Deserialize, Serialize};

use crate::{
    detour::{Holding, Kind},
    dice::{Chance, Dice},
    error::Result,
    lab::Lab,
    topology::Link,
    wires::{Way, detour_index, slot, word},
};

/// ON_DICE of the BPF program.
const ON_DICE: u32 = 1;
/// ON_DELAY.
const ON_DELAY: u32 = 2;

/// What befalls frames on one way of a cable. A frame is what the kernel moves as one: a
/// super-segment of segmentation offload counts once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Faults {
    /// It is lost.
    pub loss: Chance,
    /// It arrives twice.
    pub duplicate: Chance,
    /// The next frame overtakes it (it goes on alone if none comes within 50 ms).
    pub reorder: Chance,
    /// One bit of it is flipped, where the IP or transport checksum covers it and so must
    /// catch it. A super-segment is cut up, and every piece of it gets its own flip. A
    /// frame without such a checksum (ARP) is lost instead, as the Ethernet check would.
    pub corrupt: Chance,
    /// It takes so much longer.
    pub delay: Duration,
    /// The delay is longer or shorter by at most this, never less than zero; the order of
    /// frames stays.
    pub jitter: Duration,
    /// The same seed brings the same luck to the same frames, counted from when the faults
    /// were set. Each way of each cable has luck of its own.
    pub seed: u64,
}

impl Faults {
    /// No faults.
    pub const NONE: Faults = Faults {
        loss: Chance::NEVER,
        duplicate: Chance::NEVER,
        reorder: Chance::NEVER,
        corrupt: Chance::NEVER,
        delay: Duration::ZERO,
        jitter: Duration::ZERO,
        seed: 0,
    };

    /// Whether it does nothing, whatever the seed.
    pub fn is_none(&self) -> bool {
        Faults { seed: 0, ..*self } == Faults::NONE
    }

    fn holds(&self) -> bool {
        self.delay + self.jitter > Duration::ZERO || self.reorder > Chance::NEVER
    }
}

impl fmt::Display for Faults {
    /// Such as `loss 10%, delay 5ms ± 1ms, seed 7`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_none() {
            return f.write_str("none");
        }
        let chances = [
            ("loss", self.loss),
            ("dup", self.duplicate),
            ("reorder", self.reorder),
            ("corrupt", self.corrupt),
        ];
        for (name, chance) in chances {
            if chance > Chance::NEVER {
                write!(f, "{name} {chance}, ")?;
            }
        }
        if self.delay + self.jitter > Duration::ZERO {
            write!(f, "delay {:?} ± {:?}, ", self.delay, self.jitter)?;
        }
        write!(f, "seed {}", self.seed)
    }
}

/// How many frames of one way of a cable met which fate, since the lab is up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FaultCounts {
    /// Lost by [`Faults::loss`].
    pub lost: u64,
    /// Sent twice.
    pub duplicated: u64,
    /// Overtaken by a later frame.
    pub reordered: u64,
    /// Corrupted, or lost because they could not be.
    pub corrupted: u64,
    /// Delayed.
    pub delayed: u64,
    /// Swallowed by a trip.
    pub swallowed: u64,
    /// Lost because delay or corruption could not keep up: more than 64 MiB, or 8192 frames
    /// not yet looked at, on one way. A test that sees this asks too much of the machine.
    pub overflowed: u64,
}

impl Lab {
    /// Sets what befalls frames on these ways of a link: `a.svc` one cable, `cluster` or
    /// `service` all cables of that link, a host's name all of that host. Faults set before
    /// on these ways end; frames that they held go out at once.
    ///
    /// # Errors
    /// [`Error::NoLink`](crate::Error::NoLink), or the kernel refuses a TAP.
    pub fn set_faults(&self, link: &str, ways: &[Way], faults: &Faults) -> Result<()> {
        for (host, link) in self.topology.cables(link)? {
            for &way in ways {
                self.set_faults_of_way(host, link, way, faults)?;
            }
        }
        Ok(())
    }

    /// Ends the faults of a link, both ways, and lets go at once what they held.
    ///
    /// # Errors
    /// [`Error::NoLink`](crate::Error::NoLink).
    pub fn clear_faults(&self, link: &str) -> Result<()> {
        self.set_faults(link, &Way::BOTH, &Faults::NONE)
    }

    fn set_faults_of_way(&self, host: usize, link: Link, way: Way, faults: &Faults) -> Result<()> {
        // Locked throughout: two callers must not mix their settings.
        let mut cables = self.cables();
        let (wires, slot) = (&self.switch.wires, slot(link, way));
        let place = (host * Link::ALL.len() * Way::BOTH.len() + slot) as u64;
        let dice = Dice(faults.seed).at(place);
        let on = word!(wires, host, slot, AtomicU32, on);
        on.fetch_and(!(ON_DICE | ON_DELAY), SeqCst);

        let set = [
            (word!(wires, host, slot, AtomicU64, seed), dice.0),
            (word!(wires, host, slot, AtomicU64, frames), 0),
            (word!(wires, host, slot, AtomicU64, loss), faults.loss.of_2_32()),
            (word!(wires, host, slot, AtomicU64, duplicate), faults.duplicate.of_2_32()),
            (word!(wires, host, slot, AtomicU64, corrupt), faults.corrupt.of_2_32()),
        ];
        for (word, value) in set {
            word.store(value, SeqCst);
        }
        let mut bits = 0;
        if faults.loss.max(faults.duplicate).max(faults.corrupt) > Chance::NEVER {
            bits |= ON_DICE;
        }
        if faults.holds() {
            bits |= ON_DELAY;
        }
        let needed =
            [(Kind::Corrupt, faults.corrupt > Chance::NEVER), (Kind::Delay, faults.holds())];
        for (kind, needed) in needed {
            let index = detour_index(host, link, way, kind);
            if needed {
                self.switch.detour(
                    index,
                    kind,
                    Holding {
                        dice: dice.at(kind as u64),
                        delay: faults.delay,
                        jitter: faults.jitter,
                        reorder: faults.reorder,
                    },
                )?;
            } else {
                self.switch.detours.release(index);
            }
        }
        cables[host][link.number()].faults[way as usize] = *faults;
        on.fetch_or(bits, SeqCst);
        Ok(())
    }

    /// Forgets the frames on their way from and to a host that has died.
    pub(crate) fn discard_held(&self, host: usize) {
        for link in Link::ALL {
            for way in Way::BOTH {
                for kind in [Kind::Corrupt, Kind::Delay] {
                    self.switch.detours.discard(detour_index(host, link, way, kind));
                }
            }
        }
    }

    /// The faults of one way of a cable, and what they did. `late`: [`late_drops`] of the
    /// switch.
    ///
    /// [`late_drops`]: crate::wires::Switch::late_drops
    pub(crate) fn faults(
        &self,
        host: usize,
        link: Link,
        way: Way,
        late: &BTreeMap<u32, u64>,
    ) -> (Faults, FaultCounts) {
        let (wires, slot) = (&self.switch.wires, slot(link, way));
        let of = |kind| self.switch.detours.counts(detour_index(host, link, way, kind));
        let (delay, corrupt) = (of(Kind::Delay), of(Kind::Corrupt));
        let late: u64 = [Kind::Corrupt, Kind::Delay]
            .iter()
            .filter_map(|kind| late.get(&detour_index(host, link, way, *kind)))
            .sum();
        let counts = FaultCounts {
            lost: word!(wires, host, slot, AtomicU64, lost).load(SeqCst),
            duplicated: word!(wires, host, slot, AtomicU64, duplicated).load(SeqCst),
            corrupted: word!(wires, host, slot, AtomicU64, corrupted).load(SeqCst),
            swallowed: word!(wires, host, slot, AtomicU64, swallowed).load(SeqCst),
            reordered: delay.reordered.load(Relaxed),
            delayed: delay.delayed.load(Relaxed),
            overflowed: delay.overflowed.load(Relaxed) + corrupt.overflowed.load(Relaxed) + late,
        };
        (self.cables()[host][link.number()].faults[way as usize], counts)
    }
}
